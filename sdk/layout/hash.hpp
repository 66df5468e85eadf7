// The layout hash, which differs between replicas that cannot be averaged. The client writes it into
// Header::layout_hash, the daemon computes it again from the tensor table and refuses a memory in which it differs;
// between nodes it is part of the job's key. Pure; any thread.
//
// It is XXH3-64 (seed 0) of these bytes, integers in little-endian order, without padding:
//   8 bytes   "g-layout"
//   u32       1, the version of this sequence
//   u32       fragment_elements
//   u64       number of tensors
//   for each tensor, in order:
//     u32     length of its name, then the name's bytes
//     u8      dtype; 0 (f32) for a tensor that is averaged, because it is averaged in fp32 whatever it is kept in
//     u8      role, u8 number of dimensions
//     u64     each dimension, outermost first

#pragma once

#include <xxhash.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sdk/layout/shared_memory.hpp"

namespace gossamer::layout {

/// The description of one tensor in a layout.
struct TensorDescription {
  std::string_view name;
  Dtype dtype = Dtype::f32;
  Role role = Role::param;
  std::span<const std::uint64_t> shape;  ///< outermost first; empty for a scalar
};

inline constexpr std::uint32_t layout_hash_version = 1;

namespace detail {
template <class Integer>
void append_little_endian(std::string& bytes, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}
}  // namespace detail

/// The bytes that are hashed. This is a function of its own so that a test can compare it with the table above.
[[nodiscard]] inline std::string layout_hash_input(std::uint32_t fragment_elements,
                                                   std::span<const TensorDescription> tensors) {
  std::string bytes = "g-layout";
  detail::append_little_endian(bytes, layout_hash_version);
  detail::append_little_endian(bytes, fragment_elements);
  detail::append_little_endian(bytes, std::uint64_t{tensors.size()});
  for (const TensorDescription& tensor : tensors) {
    detail::append_little_endian(bytes, static_cast<std::uint32_t>(tensor.name.size()));
    bytes.append(tensor.name);
    bytes.push_back(static_cast<char>(tensor.role == Role::local ? tensor.dtype : Dtype::f32));
    bytes.push_back(static_cast<char>(tensor.role));
    bytes.push_back(static_cast<char>(tensor.shape.size()));
    for (const std::uint64_t dimension : tensor.shape)
      detail::append_little_endian(bytes, dimension);
  }
  return bytes;
}

[[nodiscard]] inline std::uint64_t layout_hash(std::uint32_t fragment_elements,
                                               std::span<const TensorDescription> tensors) {
  const std::string bytes = layout_hash_input(fragment_elements, tensors);
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace gossamer::layout
