// The arithmetic for one element and for one block, for all implementations. The codec's scalar definition
// (gossip/codec/lattice_scalar.cpp), the outer optimiser, the mean among a node's clients, and the CUDA kernels
// (gossip/cuda/block.hpp) all call these functions, so they cannot differ. Only the SIMD kernels of
// gossip/codec/lattice.cpp repeat them for vectors; tests require the same bits of them.
//
// This is C++17 and uses only <cmath> of the standard library, on the host, since older compilers compile device code.
// It is always compiled without contraction to fused multiply-add (-ffp-contract=off, -fmad=false), and denormal
// numbers are kept.
//
// These are pure functions; any thread.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define GOSSAMER_ANYWHERE __host__ __device__
#else
#define GOSSAMER_ANYWHERE
#endif

namespace gossamer {

/// Elements that share one quantiser step. All fragment memory is a whole number of blocks, padded with zeros.
inline constexpr std::size_t block_elements = 256;

/// The form in which values travel. The number goes on the wire.
enum class Codec : std::uint8_t {
  f32 = 0,  ///< absolute values one way, exact difference back; 4 bytes an element
  q8 = 1,   ///< low 8 bits of the lattice index; 1 byte an element
  q4 = 2,   ///< low 4 bits; half a byte an element
};

/// Number of bits of a lattice index that travel; 32 for f32.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr int codec_bits(Codec codec) {
  return codec == Codec::f32 ? 32 : codec == Codec::q8 ? 8 : 4;
}
/// Number of bytes of one block in a value or difference frame.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::size_t codec_block_bytes(Codec codec) {
  return block_elements * static_cast<std::size_t>(codec_bits(codec)) / 8;
}

/// Accepted step exponents e (s = 2^e). They keep every scaled quantity a normal fp32 number.
inline constexpr int min_step_exponent = -100;
inline constexpr int max_step_exponent = 100;

namespace gossip {

/// Fractional bits of the fixed-point value that the dither is added to.
inline constexpr int dither_bits = 11;
inline constexpr std::uint32_t dither_mask = (1U << dither_bits) - 1;
/// |k| is less than 2^index_bits.
inline constexpr int index_bits = 20;

/// The arrays that give y: the publication, plus the correction if that is not null.
struct FragmentView {
  const float* publication = nullptr;  ///< never null
  const float* correction = nullptr;

  [[nodiscard]] GOSSAMER_ANYWHERE float at(std::size_t element) const {
    float value = publication[element];
    if (correction != nullptr) value += correction[element];
    return value;
  }
};

/// The responder's findings about one block. Means beyond fp32 become the largest fp32 number.
struct BlockOutcome {
  float mean_abs = 0;     ///< mean of |s·D|, in the model's units
  float mean_square = 0;  ///< mean of (s·D)²
  bool wide = false;      ///< out of range: its D are zero and the means are meaningless
};

/// The second part of dither_word(). `mixed`: x ^ (x >> 16), where x is the index xor the lower half of the seed.
/// `key`: dither_key().
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t dither_word_of(std::uint32_t mixed, std::uint32_t key) {
  // Two rounds of a 32-bit multiply-xorshift mixer (constants: Wellons, "lowbias32"), keyed by the seed's halves.
  const std::uint32_t x = mixed * 0x7feb352dU;
  const std::uint32_t y = (x ^ (x >> 15) ^ key) * 0x846ca68bU;
  return y ^ (y >> 16);
}
/// The upper half k of the seed, prepared for dither_word_of(). That function needs z ^ (z >> 15) of z = x ^ k, which
/// is the xor of the same expression for x and for k.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t dither_key(std::uint64_t seed) {
  const auto key = static_cast<std::uint32_t>(seed >> 32);
  return key ^ (key >> 15);
}
/// 32 random bits for an element: a counter-based hash of (seed, index), the same at both ends.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t dither_word(std::uint64_t seed, std::uint32_t index) {
  const std::uint32_t x = index ^ static_cast<std::uint32_t>(seed);
  return dither_word_of(x ^ (x >> 16), dither_key(seed));
}

namespace parts {

/// fp32 values are summed in this many lanes, element n in lane n mod sum_lanes, whatever the width of the SIMD unit.
inline constexpr std::size_t sum_lanes = 16;
/// Bits of a float without its sign. From `infinity_bits` on they mean infinity or NaN.
inline constexpr std::uint32_t magnitude_mask = 0x7fffffffU;
inline constexpr std::uint32_t infinity_bits = 0x7f800000U;
inline constexpr int float_bias = 127;
inline constexpr int float_fraction_bits = 23;
inline constexpr float largest_float = 0x1.fffffep127F;
/// The largest fixed-point value to which any dither can be added.
inline constexpr float largest_fixed_point = 2147481600.0F;  // 2^31 − 2^dither_bits
/// A step in units of the last place of the largest magnitude that it allows: 2^(float_fraction_bits + 1 − index_bits).
inline constexpr std::uint32_t step_ulps = 1U << (float_fraction_bits + 1 - index_bits);

/// A float's bits without its sign. They have the same order as magnitudes.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t magnitude_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value) & magnitude_mask;
}

/// 2^exponent, a normal float.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr float power_of_two(int exponent) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(exponent + float_bias) << float_fraction_bits);
}

[[nodiscard]] GOSSAMER_ANYWHERE constexpr int clamped_exponent(int exponent) {
  return exponent < min_step_exponent ? min_step_exponent : exponent > max_step_exponent ? max_step_exponent : exponent;
}

/// The bits of s · (2^index_bits − 1). Magnitudes from here on are out of the exponent's range.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t limit_bits(int exponent) {
  return (static_cast<std::uint32_t>(exponent + index_bits + float_bias) << float_fraction_bits) - step_ulps;
}

/// smallest_exponent() from the bits of a finite magnitude. Denormal numbers and zero give the lower bound.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr int smallest_exponent_of(std::uint32_t magnitude) {
  const int biased = static_cast<int>((magnitude + step_ulps) >> float_fraction_bits);
  return clamped_exponent(biased - float_bias + 1 - index_bits);
}

/// The exponent that the encoder uses.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::int8_t raised_exponent(std::int8_t wanted, std::uint32_t magnitude) {
  const int accepted = clamped_exponent(wanted);
  const int smallest = smallest_exponent_of(magnitude);
  return static_cast<std::int8_t>(accepted < smallest ? smallest : accepted);
}

/// Rounds to nearest even. The value must fit an int32.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::int32_t nearest_int(float value) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(value);
#else
  return static_cast<std::int32_t>(std::nearbyint(value));
#endif
}

/// t + (r & mask) for a value within the exponent's range (limit_bits): the lattice index k, with dither_bits more bits
/// below it.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::int32_t dithered_within(float value, int exponent, std::uint32_t word) {
  return nearest_int(value * power_of_two(dither_bits - exponent)) + static_cast<std::int32_t>(word & dither_mask);
}

/// The value within the exponent's range that is nearest to a finite value.
[[nodiscard]] GOSSAMER_ANYWHERE inline float clamped_value(float value, int exponent) {
  const float most = largest_fixed_point * power_of_two(exponent - dither_bits);
  return value < -most ? -most : value > most ? most : value;
}

/// dithered_within() for any finite value.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::int32_t dithered(float value, int exponent, std::uint32_t word) {
  return dithered_within(clamped_value(value, exponent), exponent, word);
}

/// The lattice index of a value.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::int32_t lattice_index(float value, int exponent, std::uint32_t word) {
  return dithered(value, exponent, word) >> dither_bits;
}

/// The term that an index adds to its block's check.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t check_term(std::int32_t index, int bits, std::uint32_t word) {
  return static_cast<std::uint32_t>(index >> bits) * word;
}
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint16_t check_of(std::uint32_t sum) {
  return static_cast<std::uint16_t>(sum >> 16);
}

/// The low `bits` of a word, read as a number in two's complement.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::int32_t sign_extended(std::uint32_t word, int bits) {
  return static_cast<std::int32_t>(word << (32 - bits)) >> (32 - bits);
}

/// D from the responder's own index and the received bits: D is the distance down to the nearest congruent index.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::int32_t index_difference(std::int32_t own, std::int32_t sent, int bits) {
  return sign_extended(static_cast<std::uint32_t>(own) - static_cast<std::uint32_t>(sent), bits);
}

/// Outcome of a lattice block from the integer sums of |D| and D². The mean square is at most the largest fp32 number.
[[nodiscard]] GOSSAMER_ANYWHERE inline BlockOutcome lattice_outcome(std::uint32_t sum_abs, std::uint32_t sum_square,
                                                                    int exponent) {
  constexpr int log2_block = 8;
  static_assert(block_elements == std::size_t{1} << log2_block);
  const auto scale_bits = static_cast<std::uint64_t>(2 * exponent - log2_block + 1023) << 52;
  const double mean_square = static_cast<double>(sum_square) * __builtin_bit_cast(double, scale_bits);
  BlockOutcome outcome;
  outcome.mean_abs = static_cast<float>(sum_abs) * power_of_two(exponent - log2_block);
  outcome.mean_square =
      mean_square < static_cast<double>(largest_float) ? static_cast<float>(mean_square) : largest_float;
  return outcome;
}

[[nodiscard]] GOSSAMER_ANYWHERE inline BlockOutcome wide_outcome() {
  BlockOutcome outcome;
  outcome.wide = true;
  return outcome;
}

/// Outcome of an f32 block from the sums of |D| and D². Sums beyond fp32 become the largest fp32 number.
[[nodiscard]] GOSSAMER_ANYWHERE inline BlockOutcome f32_outcome(float sum_abs, float sum_square) {
  constexpr float share = 1.0F / static_cast<float>(block_elements);
  BlockOutcome outcome;
  outcome.mean_abs = (largest_float < sum_abs ? largest_float : sum_abs) * share;
  outcome.mean_square = (largest_float < sum_square ? largest_float : sum_square) * share;
  return outcome;
}

/// The factor of D in a commit.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr float commit_weight(int sign, int exponent, int shift) {
  return static_cast<float>(sign) * power_of_two(exponent - shift);
}

// ---- the outer optimiser (gossip/exchange/outer.hpp)

struct OuterStep {
  float momentum;
  float push;
};

[[nodiscard]] GOSSAMER_ANYWHERE inline OuterStep outer_step(float momentum, float rate, float x, float anchor,
                                                            float before) {
  const float v = momentum * before + (x - anchor);
  return {v, rate * momentum * v};
}

// ---- the mean among a node's clients (gossip/exchange/local_mean.hpp)

/// Magnitudes from 2^120 on count as infinite: sums and differences of smaller ones stay finite.
inline constexpr std::uint32_t too_large_bits = 0x7b800000U;
/// A magnitude that y never reaches: with_progress() leaves out what would lead there.
inline constexpr std::uint32_t beyond_y_bits = 0x7d800000U;  // 2^124

/// y with a client's progress taken in. The client may change its arrays meanwhile; y stays finite nevertheless.
[[nodiscard]] GOSSAMER_ANYWHERE inline float with_progress(float y, float weight, float moved) {
  const float sum = y + weight * moved;
  return magnitude_of(sum) < beyond_y_bits ? sum : y;
}

}  // namespace parts
}  // namespace gossip
}  // namespace gossamer
