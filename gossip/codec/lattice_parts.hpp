// Shared code of the codec's implementations, beside the arithmetic (gossip/arithmetic.hpp): the order in which lanes
// are summed, and the checks of arguments. Only they include it.
//
// These are pure functions; any thread. A wrong argument is this program's own fault and ends the process.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "gossip/check.hpp"
#include "gossip/codec/lattice.hpp"
#include "gossip/messages.hpp"

namespace gossamer::gossip::parts {

[[nodiscard]] constexpr bool accepted(std::int8_t exponent) {
  return exponent >= min_step_exponent && exponent <= max_step_exponent;
}

/// The sum of the lanes, always in the same order.
[[nodiscard]] inline float sum_of_lanes(std::array<float, sum_lanes> lanes) {
  for (std::size_t width = sum_lanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane)
      lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
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
