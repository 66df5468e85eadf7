// The parts of device code that nvcc provides, for a C++ compiler. It is included before a .cu file and turns its
// kernels into functions, which host_cuda runs as a grid (grid.hpp). It has as much as this project's kernels use.
//
// HOST_CUDA_ARCHITECTURE sets the __CUDA_ARCH__ that the kernels see; without it they see none.

#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "tests/host_cuda/grid.hpp"
#include "tests/host_cuda/runtime.hpp"

#undef __global__
#define __global__ inline
#undef __launch_bounds__
#define __launch_bounds__(...)

#define threadIdx (::host_cuda::thread_index)
#define blockIdx (::host_cuda::group_index)
#define blockDim (::host_cuda::group_size)
#define gridDim (::host_cuda::group_count)

namespace host_cuda {

extern thread_local constinit uint3 thread_index;
extern thread_local constinit uint3 group_index;
extern thread_local constinit uint3 group_size;
extern thread_local constinit uint3 group_count;

/// The value that a shuffle reads.
[[nodiscard]] inline std::uint32_t from_lane(const LaneValues& values, std::uint32_t mask, unsigned lane) {
  if ((mask >> lane & 1) == 0) fault("a lane reads from one that is not in the mask");
  return values[lane];
}
/// The values of all lanes in the mask, folded into one, beginning with zero.
template <class Fold>
[[nodiscard]] std::uint32_t over_lanes(Meeting meeting, std::uint32_t mask, std::uint32_t value, const Fold& fold) {
  const LaneValues values = meet(meeting, mask, value);
  std::uint32_t all = 0;
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    if ((mask >> lane & 1) != 0) all = fold(all, values[lane]);
  }
  return all;
}

}  // namespace host_cuda

inline void __syncthreads() {
  host_cuda::group_barrier();
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  host_cuda::give_way();
}

inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lane_mask) {
  const host_cuda::LaneValues values = host_cuda::meet(host_cuda::Meeting::shuffle, mask, value);
  return host_cuda::from_lane(values, mask, host_cuda::own_lane() ^ static_cast<unsigned>(lane_mask));
}
inline float __shfl_down_sync(unsigned mask, float value, unsigned delta, int width) {
  const host_cuda::LaneValues values =
      host_cuda::meet(host_cuda::Meeting::shuffle, mask, std::bit_cast<std::uint32_t>(value));
  const unsigned lane = host_cuda::own_lane();
  const unsigned within = lane % static_cast<unsigned>(width);
  if (within + delta >= static_cast<unsigned>(width)) return value;
  return std::bit_cast<float>(host_cuda::from_lane(values, mask, lane + delta));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return host_cuda::over_lanes(host_cuda::Meeting::largest, mask, value,
                               [](unsigned a, unsigned b) { return a < b ? b : a; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return host_cuda::over_lanes(host_cuda::Meeting::sum, mask, value, std::plus<unsigned>());
}
inline int __any_sync(unsigned mask, int predicate) {
  const unsigned any =
      host_cuda::over_lanes(host_cuda::Meeting::any, mask, predicate != 0 ? 1 : 0, std::bit_or<unsigned>());
  return static_cast<int>(any);
}

inline unsigned atomicOr(unsigned* address, unsigned value) {
  host_cuda::give_way();
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
/// Adds one, and goes to zero after `last`.
inline unsigned atomicInc(unsigned* address, unsigned last) {
  host_cuda::give_way();
  unsigned old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(address, &old, old >= last ? 0 : old + 1, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}

inline int __float2int_rn(float value) {
  return static_cast<int>(std::nearbyint(value));
}
inline unsigned max(unsigned a, unsigned b) {
  return a < b ? b : a;
}
/// Byte n of the result is the byte of (low, high) that the three low bits of nibble n of `selector` name.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  unsigned picked = 0;
  for (unsigned n = 0; n < 4; ++n)
    picked |= static_cast<unsigned>(both >> (8 * (selector >> (4 * n) & 7)) & 255U) << (8 * n);
  return picked;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  for (unsigned n = 0; n < 4; ++n)
    sum += (a >> (8 * n) & 255U) * (b >> (8 * n) & 255U);
  return sum;
}

/// Takes the place of the runtime's function, which knows nothing of the parameters' types.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 groups, dim3 threads_a_group, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  const auto copied = [&]<std::size_t... n>(std::index_sequence<n...>) {
    return std::tuple<Parameters...>(*static_cast<Parameters*>(arguments[n])...);
  }
  (std::index_sequence_for<Parameters...>());
  return host_cuda::launch(groups, threads_a_group, shared_bytes, stream,
                           [kernel, copied] { std::apply(kernel, copied); });
}

#ifdef HOST_CUDA_ARCHITECTURE
#define __CUDA_ARCH__ HOST_CUDA_ARCHITECTURE
#endif
