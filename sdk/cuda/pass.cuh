// The kernel of a pass: all pieces of all fragments that are due, in one launch. A group of threads works on up to
// group_elements elements of one piece. It finds the piece by looking up its own number in `first_group`.
//
// Launched by sdk/cuda/client_plugin.cu on the training stream. Invariant: a fragment's word is stored once, after all
// its pieces are done and can be seen by the whole system; `ended` is zero before a pass and after it. Compiled with
// -fmad=false, without flushing denormal numbers.

#pragma once

#include <cuda_runtime.h>

#include "sdk/cuda/element.hpp"
#include "sdk/cuda/plugin_abi.hpp"

namespace gossamer::client::cuda {

inline constexpr std::uint32_t threads_a_group = 256;
/// A thread reads and writes this many elements at once where the addresses allow it.
inline constexpr std::uint32_t vector_elements = 4;
inline constexpr std::uint32_t vectors_a_thread = 4;
inline constexpr std::uint32_t group_elements = threads_a_group * vector_elements * vectors_a_thread;

/// A pass as the kernel finds it in the device's memory.
struct Pass {
  const Piece* pieces;
  const std::uint32_t* first_group;  ///< first group of each piece, ascending from 0
  std::uint32_t piece_count;
  const Publication* publications;
  const std::uint32_t* groups;  ///< number of groups of each publication
  std::uint32_t* ended;         ///< groups of each publication that have ended
};

/// Four elements that are read or written together.
template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
  T at[vector_elements];
};

template <class T>
[[nodiscard]] __device__ inline bool is_aligned(const T* address) {
  return reinterpret_cast<std::uintptr_t>(address) % alignof(Four<T>) == 0;
}

/// Processes element i of a piece: changes x, and returns its snapshot.
template <Mode mode, class T>
[[nodiscard]] __device__ inline float serve(T& x, float correction, float before, std::uint32_t random,
                                            std::uint32_t i) {
  if constexpr (mode == Mode::none) return element::snapshot_of(x);
  const std::uint32_t sequence = random + i * element::golden_ratio;
  if constexpr (mode == Mode::add) return element::store(x, element::sum(x, correction), sequence);
  if constexpr (mode == Mode::add_within)
    return element::store(x, element::sum_within(x, correction, before), sequence);
  return element::store(x, correction, sequence);
}

/// Processes elements [begin, end) of the piece, with all threads of the group.
template <Mode mode, class T>
__device__ inline void serve_group(const Piece& piece, std::uint32_t begin, std::uint32_t end) {
  T* const x = static_cast<T*>(piece.x);
  const float* const c = piece.correction;
  const float* const b = piece.before;
  float* const s = piece.snapshot;
  const std::uint32_t random = element::mixed(piece.dither);
  // A group begins at a multiple of the vector's length, so the piece's alignment is the group's.
  const bool aligned = is_aligned(x) && is_aligned(s) && (mode == Mode::none || is_aligned(c)) &&
                       (mode != Mode::add_within || is_aligned(b));
  const std::uint32_t vectors_end = aligned ? end - (end - begin) % vector_elements : begin;
#pragma unroll
  for (std::uint32_t n = 0; n < vectors_a_thread; ++n) {
    const std::uint32_t i = begin + (n * threads_a_group + threadIdx.x) * vector_elements;
    if (i >= vectors_end) break;
    Four<T> values = *reinterpret_cast<const Four<T>*>(x + i);
    Four<float> corrections{};
    if constexpr (mode != Mode::none) corrections = *reinterpret_cast<const Four<float>*>(c + i);
    Four<float> befores{};
    if constexpr (mode == Mode::add_within) befores = *reinterpret_cast<const Four<float>*>(b + i);
    Four<float> snapshots;
#pragma unroll
    for (std::uint32_t k = 0; k < vector_elements; ++k)
      snapshots.at[k] = serve<mode>(values.at[k], corrections.at[k], befores.at[k], random, i + k);
    if constexpr (mode != Mode::none) *reinterpret_cast<Four<T>*>(x + i) = values;
    *reinterpret_cast<Four<float>*>(s + i) = snapshots;
  }
  for (std::uint32_t i = vectors_end + threadIdx.x; i < end; i += threads_a_group) {
    T value = x[i];
    s[i] = serve<mode>(value, mode == Mode::none ? 0.0F : c[i], mode == Mode::add_within ? b[i] : 0.0F, random, i);
    if constexpr (mode != Mode::none) x[i] = value;
  }
}

template <class T>
__device__ inline void serve_group(const Piece& piece, std::uint32_t begin, std::uint32_t end) {
  switch (piece.mode) {
    case Mode::none:
      return serve_group<Mode::none, T>(piece, begin, end);
    case Mode::add:
      return serve_group<Mode::add, T>(piece, begin, end);
    case Mode::replace:
      return serve_group<Mode::replace, T>(piece, begin, end);
    case Mode::add_within:
      return serve_group<Mode::add_within, T>(piece, begin, end);
  }
}

/// The piece that a group works on: the last one that begins with this group or an earlier one.
[[nodiscard]] __device__ inline std::uint32_t piece_of(std::uint32_t group, const std::uint32_t* first_group,
                                                       std::uint32_t piece_count) {
  std::uint32_t low = 0;
  std::uint32_t high = piece_count;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (first_group[middle] <= group ? low : high) = middle;
  }
  return low;
}

__global__ void __launch_bounds__(threads_a_group) pass_kernel(Pass pass) {
  const std::uint32_t p = piece_of(blockIdx.x, pass.first_group, pass.piece_count);
  const Piece piece = pass.pieces[p];
  const std::uint32_t begin = (blockIdx.x - pass.first_group[p]) * group_elements;
  const std::uint32_t end = piece.count - begin < group_elements ? piece.count : begin + group_elements;
  switch (piece.element) {
    case Element::f32:
      serve_group<float>(piece, begin, end);
      break;
    case Element::f64:
      serve_group<double>(piece, begin, end);
      break;
    case Element::bf16:
      serve_group<Bfloat16>(piece, begin, end);
      break;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  // The whole group's writes are made visible to the system before the group's end is counted, and to whoever sees the
  // word.
  __threadfence_system();
  const std::uint32_t last = pass.groups[piece.fragment] - 1;
  if (atomicInc(pass.ended + piece.fragment, last) != last) return;  // the last one sets it back to zero
  __threadfence_system();
  const Publication publication = pass.publications[piece.fragment];
  *static_cast<volatile std::uint64_t*>(publication.word) = publication.value;
}

}  // namespace gossamer::client::cuda
