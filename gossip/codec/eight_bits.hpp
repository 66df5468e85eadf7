// Values of any size, rounded to 8 bits each, with a scale for each block of 256: for exact averages over slow links.
//
// The scale is the smallest power of two with which all values of the block are whole numbers from −127 to 127 of it,
// rounded to the nearest. So values that have been rounded once do not change when they are rounded again. A block with
// NaN or infinity is NaN as a whole. The lattice codec (gossip/codec/lattice.hpp) needs fewer bits, but its receiver
// must have values near to those that are sent.
//
// What rounding takes away is carried over to the next values (error feedback: Seide et al. 2014, "1-bit stochastic
// gradient descent"; Karimireddy et al. 2019, arXiv 1901.09847).

#pragma once

#include <cstddef>
#include <span>

namespace gossamer::gossip {

inline constexpr std::size_t eight_bits_block = 256;

/// One byte for each block's scale, then one for each value.
[[nodiscard]] constexpr std::size_t eight_bits_bytes(std::size_t count) {
  return (count + eight_bits_block - 1) / eight_bits_block + count;
}

/// Rounds values + carried, and sets `carried` to what rounding took away. `out` has eight_bits_bytes() of the values.
void to_eight_bits(std::span<const float> values, std::span<float> carried, std::span<std::byte> out);
/// `in` may hold any bytes.
void from_eight_bits(std::span<const std::byte> in, std::span<float> out);
void add_eight_bits(std::span<const std::byte> in, std::span<float> to);

}  // namespace gossamer::gossip
