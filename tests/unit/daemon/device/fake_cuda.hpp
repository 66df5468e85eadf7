// What tests know of the fake plug-in (fake_cuda_plugin.cpp): its GPUs' UUIDs, the file that describes its machine, and
// what it has allocated, mapped and pinned.

#pragma once

#include <array>
#include <cstdint>

namespace gossamer::device::fake {

/// The environment variable that names the machine's file (see fake_cuda_plugin.cpp). Without it there is one sound
/// GPU.
inline constexpr const char* machine_variable = "GOSSAMER_FAKE_CUDA";
/// Added to the name of the machine's file. A file of that name exists once a call hangs.
inline constexpr const char* hanging_suffix = ".hanging";
/// The environment variable that names the file to which the counts are written at the end of the process.
inline constexpr const char* counts_variable = "GOSSAMER_FAKE_CUDA_COUNTS";

[[nodiscard]] constexpr std::array<std::uint8_t, 16> uuid_of(int gpu) {
  std::array<std::uint8_t, 16> uuid{};
  uuid.fill(0xa5);
  uuid[15] = static_cast<std::uint8_t>(gpu);
  return uuid;
}

/// The numbers of things in use now, and of calls since the process began.
struct Counts {
  std::uint64_t contexts = 0;
  std::uint64_t allocations = 0;
  std::uint64_t mappings = 0;
  std::uint64_t pinned = 0;
  std::uint64_t communicators = 0;
  std::uint64_t calls = 0;  ///< that computed or copied
};

/// The name under which the library exports the function.
inline constexpr const char* counts_symbol = "gossamer_fake_cuda_counts";
using CountsFunction = void (*)(Counts* counts);

}  // namespace gossamer::device::fake
