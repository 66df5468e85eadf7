// The lattice codec one element at a time, as gossip/codec/lattice.hpp describes it. Tests compare the SIMD kernels of
// gossip/codec/lattice.cpp with these functions bit for bit, and the kernels call them where no SIMD target fits.
//
// These are pure functions over the caller's memory; any thread. Rounding is to nearest even, every thread's default.

#include <cmath>
#include <cstring>

#include "gossip/codec/lattice.hpp"
#include "gossip/codec/lattice_parts.hpp"

namespace gossamer::gossip::scalar {
namespace {

using namespace parts;
using BlockValues = std::array<float, block_elements>;
using BlockDifferences = std::array<std::int32_t, block_elements>;

BlockValues values_of(const FragmentView& y, std::uint32_t block) {
  const std::size_t first = block * block_elements;
  BlockValues sums;
  for (std::size_t n = 0; n < block_elements; ++n)
    sums[n] = y.at(first + n);
  return sums;
}

std::uint32_t largest_magnitude(const BlockValues& values) {
  std::uint32_t largest = 0;
  for (const float value : values)
    largest = std::max(largest, magnitude_of(value));
  return largest;
}

/// The low bits of element n, sign-extended.
std::int32_t unpack(std::span<const std::byte> block, int bits, std::size_t n) {
  constexpr std::size_t half = block_elements / 2;
  if (bits == 8) return std::to_integer<std::int8_t>(block[n]);
  const auto pair = std::to_integer<std::uint32_t>(block[n % half]);
  return sign_extended(n < half ? pair : pair >> 4, 4);
}

void pack(const BlockDifferences& numbers, int bits, std::span<std::byte> block) {
  constexpr std::size_t half = block_elements / 2;
  for (std::size_t n = 0; n < block.size(); ++n) {
    block[n] = bits == 8 ? static_cast<std::byte>(numbers[n])
                         : static_cast<std::byte>((numbers[n] & 15) | (numbers[n + half] & 15) << 4);
  }
}

std::span<std::byte> block_of(std::span<std::byte> all, Codec codec, std::size_t n) {
  return all.subspan(n * codec_block_bytes(codec), codec_block_bytes(codec));
}
std::span<const std::byte> block_of(std::span<const std::byte> all, Codec codec, std::size_t n) {
  return all.subspan(n * codec_block_bytes(codec), codec_block_bytes(codec));
}

BlockValues floats_of(std::span<const std::byte> block) {
  BlockValues values;
  std::memcpy(values.data(), block.data(), block.size());
  return values;
}

/// The outcome of a block from its packed differences. False if a difference is not finite.
bool outcome_of(Codec codec, int exponent, std::span<const std::byte> block, BlockOutcome& outcome) {
  if (codec == Codec::f32) {
    const BlockValues values = floats_of(block);
    std::array<float, sum_lanes> abs{};
    std::array<float, sum_lanes> square{};
    for (std::size_t n = 0; n < block_elements; ++n) {
      abs[n % sum_lanes] += std::fabs(values[n]);
      square[n % sum_lanes] += values[n] * values[n];
    }
    outcome = f32_outcome(sum_of_lanes(abs), sum_of_lanes(square));
    return largest_magnitude(values) < infinity_bits;
  }
  std::uint32_t abs = 0;
  std::uint32_t square = 0;
  for (std::size_t n = 0; n < block_elements; ++n) {
    const std::int32_t difference = unpack(block, codec_bits(codec), n);
    abs += static_cast<std::uint32_t>(std::abs(difference));
    square += static_cast<std::uint32_t>(difference * difference);
  }
  outcome = lattice_outcome(abs, square, exponent);
  return true;
}

/// Writes D of a block into `difference`. False if the check fails.
bool decode(const BlockValues& values, std::uint32_t first, std::uint64_t seed, int bits, int exponent,
            std::uint16_t check, std::span<const std::byte> sent, BlockDifferences& difference) {
  std::uint32_t sum = 0;
  for (std::uint32_t n = 0; n < block_elements; ++n) {
    const std::uint32_t word = dither_word(seed, first + n);
    const std::int32_t own = lattice_index(values[n], exponent, word);
    difference[n] = index_difference(own, unpack(sent, bits, n), bits);
    sum += check_term(own - difference[n], bits, word);
  }
  return check_of(sum) == check;
}

}  // namespace

bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
            std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  require_encode(codec, y, blocks, exponents, checks, values);
  const int bits = codec_bits(codec);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockValues own = values_of(y, blocks[b]);
    const std::uint32_t largest = largest_magnitude(own);
    if (largest >= infinity_bits) return false;
    if (codec == Codec::f32) {
      std::memcpy(block_of(values, codec, b).data(), own.data(), sizeof own);
      continue;
    }
    exponents[b] = raised_exponent(exponents[b], largest);
    const auto first = static_cast<std::uint32_t>(blocks[b] * block_elements);
    std::uint32_t sum = 0;
    BlockDifferences index;
    for (std::uint32_t n = 0; n < block_elements; ++n) {
      const std::uint32_t word = dither_word(seed, first + n);
      index[n] = lattice_index(own[n], exponents[b], word);
      sum += check_term(index[n], bits, word);
    }
    checks[b] = check_of(sum);
    pack(index, bits, block_of(values, codec, b));
  }
  return true;
}

bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                std::span<const std::byte> values, std::span<std::byte> differences, std::span<BlockOutcome> outcomes) {
  require_encode(codec, y, blocks, exponents, checks, values);
  require_outcomes(codec, exponents, differences, {}, outcomes);
  GOSSAMER_CHECK(outcomes.size() == blocks.size());
  const int bits = codec_bits(codec);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockValues own = values_of(y, blocks[b]);
    const std::uint32_t largest = largest_magnitude(own);
    if (largest >= infinity_bits) return false;
    const std::span<const std::byte> sent = block_of(values, codec, b);
    const std::span<std::byte> result = block_of(differences, codec, b);
    if (codec == Codec::f32) {
      BlockValues apart = floats_of(sent);
      for (std::size_t n = 0; n < block_elements; ++n)
        apart[n] = own[n] - apart[n];
      std::memcpy(result.data(), apart.data(), sizeof apart);
      if (!outcome_of(codec, 0, result, outcomes[b])) return false;
      continue;
    }
    const auto first = static_cast<std::uint32_t>(blocks[b] * block_elements);
    BlockDifferences apart{};
    const bool near =
        largest < limit_bits(exponents[b]) && decode(own, first, seed, bits, exponents[b], checks[b], sent, apart);
    if (!near) apart = {};
    pack(apart, bits, result);
    (void)outcome_of(codec, exponents[b], result, outcomes[b]);
    if (!near) outcomes[b] = wide_outcome();
  }
  return true;
}

bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                 std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) {
  require_outcomes(codec, exponents, differences, wide, outcomes);
  bool finite = true;
  for (std::size_t b = 0; b < outcomes.size(); ++b) {
    const int exponent = codec == Codec::f32 ? 0 : exponents[b];
    finite &= outcome_of(codec, exponent, block_of(differences, codec, b), outcomes[b]);
    if (bit_is_set(wide, b)) outcomes[b] = wide_outcome();
  }
  return finite;
}

void apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
           std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
           const float* in, float* out) {
  require_apply(codec, shift, sign, blocks, exponents, differences, block_count);
  for (std::size_t n = 0; n < block_count * block_elements; ++n)
    out[n] = in == nullptr ? 0.0F : in[n];
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::span<const std::byte> block = block_of(differences, codec, b);
    const int exponent = codec == Codec::f32 ? 0 : exponents[b];
    const float weight = commit_weight(sign, exponent, shift);
    const BlockValues values = codec == Codec::f32 ? floats_of(block) : BlockValues{};
    float* const target = out + blocks[b] * block_elements;
    for (std::size_t n = 0; n < block_elements; ++n) {
      target[n] += weight * (codec == Codec::f32 ? values[n] : static_cast<float>(unpack(block, codec_bits(codec), n)));
    }
  }
}

bool sum(const FragmentView& y, std::size_t block_count, float* out) {
  std::uint32_t largest = 0;
  for (std::size_t block = 0; block < block_count; ++block) {
    const BlockValues values = values_of(y, static_cast<std::uint32_t>(block));
    largest = std::max(largest, largest_magnitude(values));
    std::memcpy(out + block * block_elements, values.data(), sizeof values);
  }
  return largest < infinity_bits;
}

}  // namespace gossamer::gossip::scalar
