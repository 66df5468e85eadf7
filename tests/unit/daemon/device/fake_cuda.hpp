// What tests know of the fake plug-in (fake_cuda_plugin.cpp): its GPUs' UUIDs, the file that tells it what to do,
// and what it has handed out.

#pragma once

#include <array>
#include <cstdint>

namespace gossamer::device::fake {

/// Names the file; see fake_cuda_plugin.cpp. Without it: one sound GPU.
inline constexpr const char* machine_variable = "GOSSAMER_FAKE_CUDA";
/// A file of that one's name and this is there once something hangs.
inline constexpr const char* hanging_suffix = ".hanging";
/// Names a file that the counts are written to at the end of the process.
inline constexpr const char* counts_variable = "GOSSAMER_FAKE_CUDA_COUNTS";

[[nodiscard]] constexpr std::array<std::uint8_t, 16> uuid_of(int gpu) {
  std::array<std::uint8_t, 16> uuid{};
  uuid.fill(0xa5);
  uuid[15] = static_cast<std::uint8_t>(gpu);
  return uuid;
}

/// What is handed out now, and what was done since the process began.
struct Counts {
  std::uint64_t contexts = 0;
  std::uint64_t allocations = 0;
  std::uint64_t mappings = 0;
  std::uint64_t pinned = 0;
  std::uint64_t communicators = 0;
  std::uint64_t calls = 0;  ///< that computed or copied
};

/// Of the library, by this name.
inline constexpr const char* counts_symbol = "gossamer_fake_cuda_counts";
using CountsFunction = void (*)(Counts* counts);

}  // namespace gossamer::device::fake
