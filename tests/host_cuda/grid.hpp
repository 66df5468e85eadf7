// Runs a grid of GPU threads on the calling thread. Each GPU thread is a context of its own, which gives way where a
// GPU lets other threads run: at barriers, where lanes of a warp meet, at atomic operations and fences. The next thread
// is drawn at random from those that can go on, among the threads of several groups, so that unordered operations
// happen in many orders.
//
// If something would hang a GPU, or is not defined there, the grid ends with a text that says what it was: a barrier or
// a meeting that not all threads reach, lanes that meet in different functions, a lane that is not in its own mask.
//
// Any thread may call it. Each thread has GPU threads of its own, which never move to another. A grid may not begin
// inside another one.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace host_cuda {

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned max_threads_a_group = 1024;
/// The threads of this many groups take turns. A GPU has many more; with three, one group can be late for the work of
/// two others.
inline constexpr unsigned resident_groups = 3;

/// The values that the lanes of a warp brought to a meeting. The value of a lane that is not in the mask means nothing.
using LaneValues = std::array<std::uint32_t, warp_lanes>;

enum class Meeting : std::uint8_t { shuffle, largest, sum, any };

/// Calls `kernel` once for each thread of each group, with threadIdx and the like set for it (kernel_language.hpp).
/// Returns what was wrong, or an empty text. After an error, some threads have not finished.
[[nodiscard]] std::string run_grid(unsigned groups, unsigned threads_a_group, const std::function<void()>& kernel,
                                   std::uint64_t seed);

// ---- called by kernels

void group_barrier();
/// Returns when all lanes in the mask have come.
[[nodiscard]] LaneValues meet(Meeting meeting, std::uint32_t mask, std::uint32_t value);
/// The calling thread's number in its warp.
[[nodiscard]] unsigned own_lane();
/// Other threads may run first.
void give_way();
/// Ends the grid.
[[noreturn]] void fault(const std::string& what);

}  // namespace host_cuda
