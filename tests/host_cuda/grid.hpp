// Runs a grid of GPU threads on the calling thread. Each GPU thread is a context of its own, which gives way where a
// GPU lets others run: at barriers, where lanes of a warp meet, at atomic operations and fences. Who goes on is drawn
// at random from those that can, among the threads of several groups, so that what is not ordered comes in many orders.
//
// What would hang a GPU, or is not defined there, ends the grid with a text that says what it was: a barrier or a
// meeting that not all come to, lanes that meet in different functions, a lane that is not in its own mask.
//
// Any thread; each has GPU threads of its own, which never move to another. A grid may not begin in another one.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace host_cuda {

inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned max_threads_a_group = 1024;
/// Groups whose threads take turns. A GPU has many more; with three, one can be late for what two others do.
inline constexpr unsigned resident_groups = 3;

/// What the lanes of a warp brought to where they met; that of a lane which is not in the mask means nothing.
using LaneValues = std::array<std::uint32_t, warp_lanes>;

enum class Meeting : std::uint8_t { shuffle, largest, sum, any };

/// Calls `kernel` once for each thread of each group, with threadIdx and the like as they are for it
/// (kernel_language.hpp). Empty, or what was wrong: then some threads have not come to their end.
[[nodiscard]] std::string run_grid(unsigned groups, unsigned threads_a_group, const std::function<void()>& kernel,
                                   std::uint64_t seed);

// ---- called by kernels

void group_barrier();
/// Returns when all lanes in the mask are there.
[[nodiscard]] LaneValues meet(Meeting meeting, std::uint32_t mask, std::uint32_t value);
/// The calling thread's number in its warp.
[[nodiscard]] unsigned own_lane();
/// Others may come first.
void give_way();
/// Ends the grid.
[[noreturn]] void fault(const std::string& what);

}  // namespace host_cuda
