// How much memory this process may still take, so that a model too large for the machine is refused before anything is
// taken. The kernel does not refuse shared memory; it kills a process when memory runs out.
//
// Called once by gossamer_open(). The result is an estimate, because other processes take memory, too.

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace gossamer::client {

/// Bytes that can be taken without swapping: the machine's, or less if the control group (version 2 or 1) or one above
/// it has a lower limit. Nothing if the kernel does not say. `root` is where proc and sys are.
[[nodiscard]] std::optional<std::uint64_t> available_memory_bytes(const std::filesystem::path& root = "/");

/// The value of "MemAvailable" in the text of /proc/meminfo.
[[nodiscard]] std::optional<std::uint64_t> machine_available_bytes(std::string_view meminfo);

/// The bytes that a control group leaves: its limit minus its use, without the page cache, which can be dropped
/// ("inactive_file" and "active_file" of memory.stat; with the prefix "total_" in version 1). The arguments are the
/// texts of memory.max, memory.current and memory.stat, or of memory.limit_in_bytes, memory.usage_in_bytes and
/// memory.stat. Nothing if there is no limit.
[[nodiscard]] std::optional<std::uint64_t> group_available_bytes(std::string_view maximum, std::string_view current,
                                                                 std::string_view statistics);

}  // namespace gossamer::client
