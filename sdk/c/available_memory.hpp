// How much memory this process may still take, so that a model too large for the machine is refused before anything is
// taken: shared memory is not refused by the kernel, but ends with somebody being killed.
//
// Called once by gossamer_open(). An estimate: others take memory, too.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace gossamer::client {

/// Bytes that can be taken without swapping: what the machine has, or less if the control group (of version 2 or 1) or
/// one above it is limited to less. Nothing if the kernel does not say. `root`: where proc and sys are.
[[nodiscard]] std::optional<std::uint64_t> available_memory_bytes(const std::filesystem::path& root = "/");

/// "MemAvailable" of the text of /proc/meminfo.
[[nodiscard]] std::optional<std::uint64_t> machine_available_bytes(std::string_view meminfo);

/// What a control group leaves: its limit less its use, where the page cache ("inactive_file" and "active_file" of
/// memory.stat; of version 1 with "total_" before) can be dropped. Arguments are the texts of memory.max,
/// memory.current and memory.stat, or of memory.limit_in_bytes, memory.usage_in_bytes and memory.stat; nothing if there
/// is no limit.
[[nodiscard]] std::optional<std::uint64_t> group_available_bytes(std::string_view maximum, std::string_view current,
                                                                 std::string_view statistics);

}  // namespace gossamer::client
