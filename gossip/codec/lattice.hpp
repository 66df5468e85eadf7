// The codec's kernels: shared-dither lattice quantisation of one fragment, block by block.
//
// For a block with step s = 2^e and a dither u in [0, 1) that both ends derive from (seed, element index):
//
//   k(y) = floor(y / s + u)
//
// The initiator sends the low b bits of k_i. The responder finds k_i as the integer nearest to its own k_j that is
// congruent to these bits. (This is lattice decoding with its own model as side information: Davies et al. 2021; modulo
// coding: Moniqua, Lu & De Sa 2020.) So it has the exact integer difference D = k_j − k_i. E[s·D] = y_j − y_i, and
// equal values give D = 0, because the dither is shared.
//
// The arithmetic is the same on every machine and in every implementation:
//   t = round_to_nearest_even(clamp(y · 2^(dither_bits − e)))  as int32      (the scaling is exact)
//   k = (t + (r & dither_mask)) >> dither_bits                  arithmetic shift
// where r = dither_word(seed, element index) is 32 bits. The addition does not overflow if |y| < s · (2^20 − 1). The
// encoder ensures this and raises e where needed; the decoder marks a block wide if its own values violate it.
//
// Each block has a 16-bit check of the high parts h = k >> b (arithmetic): the top 16 bits of the wrapping 32-bit sum
// of h · r over the block. A block whose check fails is *wide*: the models differ by more than the range.
//
// Packing for q8: byte n of a block is the low 8 bits of element n. For q4, byte n (n < 128) holds element n in its low
// nibble and element n + 128 in its high nibble. Differences D are packed in the same way, in two's complement, with D
// in [−2^(b−1), 2^(b−1) − 1].
//
// These are pure functions over memory of the caller; any thread. At run time the widest SIMD unit of the processor is
// chosen. The functions in gossip::scalar define the result and give the same bits.

#pragma once

#include <optional>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// Smallest accepted exponent e with |y| < s · (2^index_bits − 1) for every y of a block. `largest` is the block's
/// largest magnitude and must be finite. If no accepted exponent is large enough, the result is max_step_exponent, and
/// the encoder clamps.
[[nodiscard]] int smallest_exponent(float largest);

/// Encodes the listed blocks (ascending indices). `exponents` holds the wanted exponents and receives the used ones
/// (raised where a block's magnitude needs it, clamped to the accepted range). Sizes: one exponent and one check a
/// block, and codec_block_bytes of values a block. For f32, exponents and checks are ignored and may be empty. False if
/// a value is NaN or infinite (the outputs are then meaningless).
[[nodiscard]] bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                          std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
                          std::span<std::byte> values);

/// Decodes against y. Gives D = k_j − k_i (y_j − y_i for f32) and an outcome for each block. False if y is not finite;
/// for f32 also if a received value or a difference is not finite. Exponents must be in the accepted range.
[[nodiscard]] bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks,
                              std::uint64_t seed, std::span<const std::int8_t> exponents,
                              std::span<const std::uint16_t> checks, std::span<const std::byte> values,
                              std::span<std::byte> differences, std::span<BlockOutcome> outcomes);

/// Computes the outcomes again from differences: what the initiator learns from a reply. `wide` is the reply's bitmap
/// (empty: none). False if a difference is not finite (only possible for f32). Such a reply must not be applied.
bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                 std::span<const std::byte> wide, std::span<BlockOutcome> outcomes);

/// out = in + sign · 2^-shift · s · D on the listed blocks, out = in on all others of the fragment's `block_count`.
/// `in` may be null (zeros) and may equal `out`. `sign` is +1 (initiator) or −1 (responder). Wide blocks have D = 0.
void apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
           std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
           const float* in, float* out);

/// out = y, written out; false if a value is not finite. Used for snapshots that are given to a joiner.
[[nodiscard]] bool sum(const FragmentView& y, std::size_t block_count, float* out);

namespace scalar {
// These are the definitions, element by element. They are used by tests and where no SIMD target fits.
[[nodiscard]] bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                          std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
                          std::span<std::byte> values);
[[nodiscard]] bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks,
                              std::uint64_t seed, std::span<const std::int8_t> exponents,
                              std::span<const std::uint16_t> checks, std::span<const std::byte> values,
                              std::span<std::byte> differences, std::span<BlockOutcome> outcomes);
void apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
           std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
           const float* in, float* out);
bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                 std::span<const std::byte> wide, std::span<BlockOutcome> outcomes);
[[nodiscard]] bool sum(const FragmentView& y, std::size_t block_count, float* out);
}  // namespace scalar

}  // namespace gossamer::gossip
