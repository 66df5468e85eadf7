// The CUDA kernels: each is a walk over the blocks or elements of one fragment with the functions of
// gossip/cuda/block.hpp. A fragment's numbers go through memory once.
//
// Launched by daemon/device/cuda_plugin.cu on the stream of whoever waits for the result. `flag` is a word that is zero
// before and set when a number is not finite. Compiled with -fmad=false, without flushing denormal numbers.

#pragma once

#include <cuda_runtime.h>

#include "gossip/cuda/block.hpp"

namespace gossamer::gossip::cuda {

inline constexpr unsigned threads_a_group = 256;

/// A part of a warp of `lane_count` threads, which reduce among themselves. All parts of a warp reduce at once.
template <unsigned lane_count>
struct DeviceWarp {
  static constexpr unsigned whole = 0xffffffffU;
  unsigned lane = threadIdx.x % lane_count;

  template <class Work>
  [[nodiscard]] __device__ auto each(Work work) const {
    return work(lane);
  }
  template <class Work>
  __device__ void run(Work work) const {
    work(lane);
  }
  template <class Work>
  __device__ void once(Work work) const {
    if (lane == 0) work();
  }
  template <class T>
  [[nodiscard]] __device__ static const T& of(const T& value, unsigned) {
    return value;
  }
  [[nodiscard]] __device__ std::uint32_t largest(std::uint32_t value) const {
#if __CUDA_ARCH__ >= 800
    if constexpr (lane_count == 32) {
      return __reduce_max_sync(whole, value);
    } else
#endif
    {
      for (unsigned width = lane_count / 2; width > 0; width /= 2)
        value = max(value, __shfl_xor_sync(whole, value, static_cast<int>(width)));
      return value;
    }
  }
  [[nodiscard]] __device__ std::uint32_t sum(std::uint32_t value) const {
#if __CUDA_ARCH__ >= 800
    if constexpr (lane_count == 32) {
      return __reduce_add_sync(whole, value);
    } else
#endif
    {
      for (unsigned width = lane_count / 2; width > 0; width /= 2)
        value += __shfl_xor_sync(whole, value, static_cast<int>(width));
      return value;
    }
  }
  /// The result is right in lane 0 only, and only lane 0 writes it.
  [[nodiscard]] __device__ float ordered_sum(float value) const {
    for (unsigned width = lane_count / 2; width > 0; width /= 2)
      value += __shfl_down_sync(whole, value, width, static_cast<int>(lane_count));
    return value;
  }
};

/// Number of this thread's group of `lane_count`, over the whole launch.
template <unsigned lane_count>
[[nodiscard]] __device__ inline std::uint32_t group_number() {
  return (blockIdx.x * blockDim.x + threadIdx.x) / lane_count;
}

[[nodiscard]] __device__ inline std::uint32_t warps_of_launch() {
  return gridDim.x * (blockDim.x / warp_lanes);
}

/// The item of this thread's group of lanes. The last warp may have more groups than items are left. Those groups do
/// the last item again, so that all lanes of a warp take part in its reductions. There is at least one item.
template <unsigned lane_count>
[[nodiscard]] __device__ inline std::uint32_t item_of(std::uint32_t count) {
  const std::uint32_t n = group_number<lane_count>();
  return n < count ? n : count - 1;
}

/// The blocks that a call is about: all of them, or those of an ascending list.
struct BlockList {
  const std::uint32_t* blocks = nullptr;  ///< null: all
  std::uint32_t count = 0;

  [[nodiscard]] __device__ std::uint32_t at(std::uint32_t n) const { return blocks == nullptr ? n : blocks[n]; }
  /// The block's place in the list; `count` if it is not in the list.
  [[nodiscard]] __device__ std::uint32_t place(std::uint32_t block, std::uint32_t block_count) const {
    return blocks == nullptr ? block : place_of(block, blocks, count, block_count);
  }
};

/// Warp n does the places n, n + warps_of_launch(), … of the list. So a launch needs no more warps than the GPU runs at
/// once.
template <int bits>
__global__ void encode_kernel(FragmentView y, BlockList list, std::uint64_t seed, std::int8_t* exponents,
                              std::uint16_t* checks, std::uint8_t* values, std::uint32_t* flag) {
  const DeviceWarp<warp_lanes> warp;
  for (std::uint32_t n = group_number<warp_lanes>(); n < list.count; n += warps_of_launch()) {
    std::uint8_t* const out = values + n * (block_elements * bits / 8);
    if (!encode_block<bits>(warp, y, list.at(n), seed, exponents + n, checks + n, out)) *flag = 1;
  }
}

/// For f32, and for a whole fragment's sum: out = y, block n of the list to place n.
__global__ void copy_kernel(FragmentView y, BlockList list, float* out, std::uint32_t* flag) {
  const std::uint32_t n = group_number<warp_lanes>();
  if (n >= list.count) return;
  if (copy_lane(y, list.at(n), threadIdx.x % warp_lanes, out + n * block_elements) >= parts::infinity_bits) *flag = 1;
}

/// The warps share the list as in encode_kernel().
template <int bits>
__global__ void difference_kernel(FragmentView y, BlockList list, std::uint64_t seed, const std::int8_t* exponents,
                                  const std::uint16_t* checks, const std::uint8_t* values, std::uint8_t* differences,
                                  BlockOutcome* outcomes, std::uint32_t* flag) {
  const DeviceWarp<warp_lanes> warp;
  for (std::uint32_t n = group_number<warp_lanes>(); n < list.count; n += warps_of_launch()) {
    const std::size_t at = n * (block_elements * bits / 8);
    if (!difference_block<bits>(warp, y, list.at(n), seed, exponents[n], checks[n], values + at, differences + at,
                                outcomes + n)) {
      *flag = 1;
    }
  }
}

__global__ void difference_f32_kernel(FragmentView y, BlockList list, const float* values, float* differences,
                                      BlockOutcome* outcomes, std::uint32_t* flag) {
  if (list.count == 0) return;
  const std::uint32_t n = item_of<sum_lanes>(list.count);
  const DeviceWarp<sum_lanes> warp;
  const std::size_t at = n * block_elements;
  if (!difference_block_f32(warp, y, list.at(n), values + at, differences + at, outcomes + n)) *flag = 1;
}

[[nodiscard]] __device__ inline bool bit_at(const std::uint8_t* bitmap, std::uint32_t n) {
  return bitmap != nullptr && (bitmap[n / 8] >> (n % 8) & 1) != 0;
}

template <int bits>
__global__ void outcomes_kernel(std::uint32_t count, const std::int8_t* exponents, const std::uint8_t* differences,
                                const std::uint8_t* wide, BlockOutcome* outcomes) {
  if (count == 0) return;
  const std::uint32_t n = item_of<outcome_lanes<bits>>(count);
  const DeviceWarp<outcome_lanes<bits>> warp;
  outcome_block<bits>(warp, exponents[n], differences + n * (block_elements * bits / 8), bit_at(wide, n), outcomes + n);
}

__global__ void outcomes_f32_kernel(std::uint32_t count, const float* differences, const std::uint8_t* wide,
                                    BlockOutcome* outcomes, std::uint32_t* flag) {
  if (count == 0) return;
  const std::uint32_t n = item_of<sum_lanes>(count);
  const DeviceWarp<sum_lanes> warp;
  if (!outcome_block_f32(warp, differences + n * block_elements, bit_at(wide, n), outcomes + n)) *flag = 1;
}

/// One warp does one block of the fragment. Blocks that are not in the list are copied unchanged. `exponents` null: all
/// are 0.
template <Codec codec>
__global__ void apply_kernel(int shift, int sign, BlockList list, const std::int8_t* exponents,
                             const std::uint8_t* differences, std::uint32_t block_count, const float* in, float* out) {
  const std::uint32_t block = group_number<warp_lanes>();
  if (block >= block_count) return;
  const std::uint32_t n = list.place(block, block_count);
  const bool listed = n < list.count;
  const float weight = parts::commit_weight(sign, listed && exponents != nullptr ? exponents[n] : 0, shift);
  const std::size_t first = block * block_elements;
  apply_lane<codec>(listed ? differences + n * codec_block_bytes(codec) : nullptr, weight,
                    in == nullptr ? nullptr : in + first, out + first, threadIdx.x % warp_lanes);
}

__global__ void outer_check_kernel(OuterArrays outer, std::uint32_t elements, std::uint32_t* flag) {
  const std::uint32_t e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e < elements && !outer_element(outer, e).finite) *flag = 1;
}

/// Runs after outer_check_kernel(), and writes nothing if that kernel has set the flag.
__global__ void outer_write_kernel(OuterArrays outer, std::uint32_t elements, const std::uint32_t* flag) {
  const std::uint32_t e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e < elements && *flag == 0) write_outer_element(outer, e);
}

/// Finds the clients whose values are not finite, and sets a bit in each one's word. A thread has four elements.
__global__ void mean_check_kernel(const ClientArrays* clients, std::uint32_t count, std::uint32_t elements,
                                  std::uint32_t* found) {
  const std::uint32_t e = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= elements) return;
  for (std::uint32_t c = 0; c < count; ++c) {
    if (clients[c].check != 0 && !mean_finite(clients[c], e)) atomicOr(found + c, mean_not_finite);
  }
}

/// Sets the bit if `is` holds in any thread of the warp. The warp writes at most once.
__device__ inline void tell(bool is, std::uint32_t bit, std::uint32_t* found) {
  if (__any_sync(0xffffffffU, is ? 1 : 0) == 0 || threadIdx.x % warp_lanes != 0) return;
  if ((*found & bit) == 0) atomicOr(found, bit);
}

/// A thread has four elements, a warp half a block. The elements are a whole number of blocks, so all threads of a warp
/// have elements, or none has.
__global__ void mean_kernel(const ClientArrays* clients, std::uint32_t count, float* y, std::uint32_t elements,
                            std::uint32_t* found) {
  const std::uint32_t e = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= elements) return;
  Four values = load_four(y + e);
  for (std::uint32_t c = 0; c < count; ++c) {
    const ClientArrays client = clients[c];
    if (client.progress == 0 || (found[c] & mean_not_finite) != 0) continue;
    tell(mean_take(client, e, values), mean_moved, found + c);
  }
  store_four(y + e, values);
  for (std::uint32_t c = 0; c < count; ++c) {
    const ClientArrays client = clients[c];
    if (client.correction == nullptr || (found[c] & mean_not_finite) != 0) continue;
    tell(mean_correct(client, e, values), mean_differs, found + c);
  }
}

/// The work on a training stream at a step, in one launch: adds the correction to the live values, and writes a
/// snapshot of them. A null pointer leaves either out. With `replace` the live values become the correction.
__global__ void step_kernel(float* live, const float* correction, bool replace, float* snapshot,
                            std::uint32_t elements) {
  const std::uint32_t e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= elements) return;
  float value = live[e];
  if (correction != nullptr) {
    value = replace ? correction[e] : value + correction[e];
    live[e] = value;
  }
  if (snapshot != nullptr) snapshot[e] = value;
}

}  // namespace gossamer::gossip::cuda
