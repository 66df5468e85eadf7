// What the scalar and the SIMD kernels of the codec share: the arithmetic on whole blocks (exponents, checks, outcomes)
// and the checks of arguments. Included by gossip/lattice.cpp and gossip/lattice_scalar.cpp only.
//
// Pure functions, any thread. A wrong argument is a fault of ours, not of a peer's: it ends the process.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "gossip/check.hpp"
#include "gossip/lattice.hpp"
#include "gossip/messages.hpp"

namespace gossamer::gossip::parts {

/// fp32 values are summed in this many lanes, element n in lane n mod sum_lanes, whatever the width of the SIMD unit.
inline constexpr std::size_t sum_lanes = 16;
/// Bits of a float without its sign; everything from `infinity_bits` up is infinite or NaN.
inline constexpr std::uint32_t magnitude_mask = 0x7fffffffU;
inline constexpr std::uint32_t infinity_bits = 0x7f800000U;
inline constexpr int float_bias = 127;
inline constexpr int float_fraction_bits = 23;
/// The largest fixed-point value to which any dither can be added.
inline constexpr float largest_fixed_point = 2147481600.0F;  // 2^31 − 2^dither_bits
/// A step in units of the last place of the largest magnitude that it allows: 2^(float_fraction_bits + 1 − index_bits).
inline constexpr std::uint32_t step_ulps = 1U << (float_fraction_bits + 1 - index_bits);

/// 2^exponent, a normal float.
[[nodiscard]] constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + float_bias) << float_fraction_bits);
}

/// The bits of s · (2^index_bits − 1): a magnitude from here on is out of the exponent's range.
[[nodiscard]] constexpr std::uint32_t limit_bits(int exponent) {
  return (static_cast<std::uint32_t>(exponent + index_bits + float_bias) << float_fraction_bits) - step_ulps;
}

/// smallest_exponent() from the bits of a finite magnitude. Denormal numbers and zero end at the lower bound.
[[nodiscard]] constexpr int smallest_exponent_of(std::uint32_t magnitude) {
  const int biased = static_cast<int>((magnitude + step_ulps) >> float_fraction_bits);
  return std::clamp(biased - float_bias + 1 - index_bits, min_step_exponent, max_step_exponent);
}

/// The exponent that the encoder uses.
[[nodiscard]] constexpr std::int8_t raised_exponent(std::int8_t wanted, std::uint32_t magnitude) {
  const int accepted = std::clamp<int>(wanted, min_step_exponent, max_step_exponent);
  return static_cast<std::int8_t>(std::max(accepted, smallest_exponent_of(magnitude)));
}

[[nodiscard]] constexpr bool accepted(std::int8_t exponent) {
  return exponent >= min_step_exponent && exponent <= max_step_exponent;
}

[[nodiscard]] constexpr std::uint16_t check_of(std::uint32_t sum) {
  return static_cast<std::uint16_t>(sum >> 16);
}

inline constexpr BlockOutcome wide_outcome{0, 0, true};

/// Outcome of a lattice block from the integer sums of |D| and D². A mean square beyond fp32 becomes its largest
/// number.
[[nodiscard]] inline BlockOutcome lattice_outcome(std::uint32_t sum_abs, std::uint32_t sum_square, int exponent) {
  constexpr int log2_block = std::countr_zero(block_elements);
  const auto square_scale = std::bit_cast<double>(static_cast<std::uint64_t>(2 * exponent - log2_block + 1023) << 52);
  const double mean_square = static_cast<double>(sum_square) * square_scale;
  return {static_cast<float>(sum_abs) * power_of_two(exponent - log2_block),
          static_cast<float>(std::min<double>(mean_square, std::numeric_limits<float>::max())), false};
}

/// Sum of the lanes, always in the same order.
[[nodiscard]] inline float sum_of_lanes(std::array<float, sum_lanes> lanes) {
  for (std::size_t width = sum_lanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane)
      lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

/// Outcome of an f32 block from the sums of |D| and D². Sums beyond fp32 become its largest number.
[[nodiscard]] inline BlockOutcome f32_outcome(float sum_abs, float sum_square) {
  constexpr float largest = std::numeric_limits<float>::max();
  constexpr float share = 1.0F / static_cast<float>(block_elements);
  return {std::min(sum_abs, largest) * share, std::min(sum_square, largest) * share, false};
}

[[nodiscard]] inline bool bit_is_set(std::span<const std::byte> bitmap, std::size_t index) {
  return !bitmap.empty() && (std::to_integer<unsigned>(bitmap[index / 8]) >> (index % 8) & 1U) != 0;
}

inline void require_ascending(std::span<const std::uint32_t> blocks, std::size_t block_count) {
  GOSSAMER_CHECK(block_count <= max_fragment_blocks);
  GOSSAMER_CHECK(blocks.empty() || blocks.back() < block_count);
  bool ascending = true;
  for (std::size_t n = 1; n < blocks.size(); ++n)
    ascending &= blocks[n - 1] < blocks[n];
  GOSSAMER_CHECK(ascending);
}

inline void require_accepted(std::span<const std::int8_t> exponents) {
  GOSSAMER_CHECK(std::all_of(exponents.begin(), exponents.end(), accepted));
}

inline void require_encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks,
                           std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                           std::span<const std::byte> values) {
  GOSSAMER_CHECK(y.publication != nullptr || blocks.empty());
  require_ascending(blocks, max_fragment_blocks);
  GOSSAMER_CHECK(values.size() == blocks.size() * codec_block_bytes(codec));
  if (codec == Codec::f32) return;
  GOSSAMER_CHECK(exponents.size() == blocks.size());
  GOSSAMER_CHECK(checks.size() == blocks.size());
}

inline void require_outcomes(Codec codec, std::span<const std::int8_t> exponents,
                             std::span<const std::byte> differences, std::span<const std::byte> wide,
                             std::span<const BlockOutcome> outcomes) {
  GOSSAMER_CHECK(differences.size() == outcomes.size() * codec_block_bytes(codec));
  GOSSAMER_CHECK(wide.empty() || wide.size() == bitmap_bytes(outcomes.size()));
  if (codec == Codec::f32) return;
  GOSSAMER_CHECK(exponents.size() == outcomes.size());
  require_accepted(exponents);
}

inline void require_apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
                          std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                          std::size_t block_count) {
  GOSSAMER_CHECK(shift >= 0 && shift <= max_shift_bound);
  GOSSAMER_CHECK(sign == 1 || sign == -1);
  require_ascending(blocks, block_count);
  GOSSAMER_CHECK(differences.size() == blocks.size() * codec_block_bytes(codec));
  if (codec == Codec::f32) return;
  GOSSAMER_CHECK(exponents.size() == blocks.size());
  require_accepted(exponents);
}

}  // namespace gossamer::gossip::parts
