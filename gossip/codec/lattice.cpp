// The lattice codec with SIMD: the kernels of gossip/codec/lattice.hpp for every target of Highway, chosen at run time.
// They give the same bits as gossip/codec/lattice_scalar.cpp, which is the readable version of the computation.
//
// The same pass over a block does the work and finds the largest magnitude, which shows whether all values are finite
// and within the exponent's range. If the magnitude is too large, the work is thrown away: the encoder repeats it with
// a raised exponent, the decoder marks the block wide. Vectors have at most 16 lanes, so that a packed block is always
// a whole number of groups of four vectors. There is no fused multiply-add and no reordering of fp32 sums, so results
// do not depend on the target.
//
// These are pure functions over the caller's memory; any thread.

#include "gossip/codec/lattice.hpp"

#include <cmath>
#include <cstring>

#include "gossip/codec/lattice_parts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gossip/codec/lattice.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace gossamer::gossip::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

using scalar::apply;
using scalar::difference;
using scalar::encode;
using scalar::outcomes_of;
using scalar::sum;

#else

namespace hn = hwy::HWY_NAMESPACE;
using parts::sum_lanes;

using Floats = hn::CappedTag<float, sum_lanes>;
using Ints = hn::RebindToSigned<Floats>;
using Words = hn::RebindToUnsigned<Floats>;
using Octets = hn::Repartition<std::uint8_t, Floats>;     // as many bytes as a vector has
using FewSignedOctets = hn::Rebind<std::int8_t, Floats>;  // one byte for each lane of Floats
using FloatVector = hn::Vec<Floats>;
using IntVector = hn::Vec<Ints>;
using WordVector = hn::Vec<Words>;
using OctetVector = hn::Vec<Octets>;

constexpr std::size_t half_block = block_elements / 2;

/// Memory is requested this many blocks ahead: enough for its latency, and few enough for the first-level cache.
constexpr std::size_t blocks_ahead = 8;

/// Requests `bytes` from `from` on. An address that cannot be read does no harm.
HWY_INLINE void prefetch(const void* from, std::size_t bytes) {
  constexpr std::size_t line_bytes = 64;
  const auto* const lines = static_cast<const std::byte*>(from);
  for (std::size_t n = 0; n < bytes; n += line_bytes)
    hwy::Prefetch(lines + n);
}

// ---- reading a fragment

/// A view without its null pointers, in the same order.
struct Sources {
  const float* arrays[2] = {nullptr, nullptr};
  std::size_t count = 0;

  Sources() = default;
  explicit Sources(const FragmentView& y) {
    for (const float* array : {y.publication, y.correction}) {
      if (array != nullptr) arrays[count++] = array;
    }
  }
};

template <std::size_t count>
HWY_INLINE FloatVector load_sum(const Sources& y, std::size_t index) {
  const Floats floats;
  FloatVector value = hn::LoadU(floats, y.arrays[0] + index);
  if constexpr (count > 1) value = hn::Add(value, hn::LoadU(floats, y.arrays[1] + index));
  return value;
}

HWY_INLINE IntVector raised_to_magnitude(IntVector largest, FloatVector value) {
  const Ints ints;
  const auto mask = hn::Set(ints, static_cast<std::int32_t>(parts::magnitude_mask));
  return hn::Max(largest, hn::And(hn::BitCast(ints, value), mask));
}

HWY_INLINE std::uint32_t largest_lane(IntVector largest) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(Ints(), largest)));
}

template <std::size_t count>
HWY_INLINE IntVector copy_block_of(const Sources& y, std::size_t first, float* HWY_RESTRICT out, IntVector largest) {
  const Floats floats;
  for (std::size_t n = 0; n < block_elements; n += hn::Lanes(floats)) {
    const FloatVector value = load_sum<count>(y, first + n);
    largest = raised_to_magnitude(largest, value);
    hn::StoreU(value, floats, out + n);
  }
  return largest;
}

/// Copies the sum of the sources into `out` and raises `largest` to its largest magnitude.
HWY_INLINE IntVector copy_block(const Sources& y, std::size_t first, float* HWY_RESTRICT out, IntVector largest) {
  return y.count == 1 ? copy_block_of<1>(y, first, out, largest) : copy_block_of<2>(y, first, out, largest);
}

/// Requests the memory of the block that stands `blocks_ahead` places after place `index` in the list.
HWY_INLINE void prefetch_block(const Sources& y, std::span<const std::uint32_t> blocks, std::size_t index) {
  if (index + blocks_ahead >= blocks.size()) return;
  const std::size_t first = blocks[index + blocks_ahead] * block_elements;
  for (std::size_t n = 0; n < y.count; ++n)
    prefetch(y.arrays[n] + first, block_elements * sizeof(float));
}

// ---- the lattice

/// A block of a view with `count` sources: the sources, and the constants for dither and scaling. No member is a
/// reference: the compiler would read it again after each write, since written bytes may alias anything.
template <std::size_t count>
struct Block {
  Block(const Sources& fragment, std::uint32_t block, std::uint64_t seed, int exponent)
      : scale(parts::power_of_two(dither_bits - exponent)) {
    for (std::size_t n = 0; n < count; ++n)
      y.arrays[n] = fragment.arrays[n] + block * block_elements;
    const auto key = static_cast<std::uint32_t>(block * block_elements) ^ static_cast<std::uint32_t>(seed);
    const auto upper = static_cast<std::uint32_t>(seed >> 32);
    first_word = key ^ (key >> 16);
    second_word = upper ^ (upper >> 15);
  }

  Sources y;
  std::uint32_t first_word;   ///< dither_word's first xor and shift for element 0 of the block
  std::uint32_t second_word;  ///< the seed's upper half, after the second shift
  float scale;
};

/// The element numbers from n on, mixed with the key, as the input of dither_words(). Shifts are linear over xor, so
/// the shifts of the key are done once a block.
template <std::size_t count>
HWY_INLINE WordVector keyed_elements(const Block<count>& block, std::size_t n) {
  const Words words;
  const WordVector numbers = hn::Xor(hn::Iota(words, 0U), hn::Set(words, block.first_word));
  return hn::Xor(numbers, hn::Set(words, static_cast<std::uint32_t>(n)));
}

/// dither_word() for the elements `skipped` after those of `keyed`. Their numbers have no bit in common with `skipped`.
template <std::size_t count>
HWY_INLINE WordVector dither_words(const Block<count>& block, WordVector keyed, std::size_t skipped) {
  const Words words;
  const WordVector start = hn::Xor(keyed, hn::Set(words, static_cast<std::uint32_t>(skipped)));
  WordVector x = hn::Mul(start, hn::Set(words, 0x7feb352dU));
  x = hn::Xor3(x, hn::ShiftRight<15>(x), hn::Set(words, block.second_word));
  x = hn::Mul(x, hn::Set(words, 0x846ca68bU));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

/// Rounds values that fit an int32 to nearest even. Highway's function handles all other values too, which costs four
/// instructions.
HWY_INLINE IntVector nearest_int(FloatVector value) {
#if HWY_TARGET == HWY_AVX3
  return IntVector{_mm512_cvtps_epi32(value.raw)};
#elif HWY_TARGET == HWY_AVX2
  return IntVector{_mm256_cvtps_epi32(value.raw)};
#else
  return hn::NearestInt(value);
#endif
}

/// Position of k's lowest bit after dithered values are shifted right by `spare_bits`: the second byte.
constexpr int index_position = 8;
constexpr int spare_bits = dither_bits - index_position;

/// The check's terms for dithered values with the index at `index_position`.
template <int bits>
HWY_INLINE WordVector check_terms(IntVector indices, WordVector word) {
  const WordVector high = hn::BitCast(Words(), hn::ShiftRight<index_position + bits>(indices));
  return hn::Mul(high, word);
}

/// The lattice indices, at `index_position`, of the vector at element n of a block. Raises `largest`.
template <std::size_t count>
HWY_INLINE IntVector dithered(const Block<count>& block, std::size_t n, WordVector dither, IntVector& largest) {
  const FloatVector value = load_sum<count>(block.y, n);
  largest = raised_to_magnitude(largest, value);
  const IntVector fixed_point = nearest_int(hn::Mul(value, hn::Set(Floats(), block.scale)));
  return hn::ShiftRight<spare_bits>(hn::Add(fixed_point, hn::BitCast(Ints(), dither)));
}

/// Encodes the vector `skipped` elements after n; `keyed` is for n. Returns its indices' low bits at `index_position`.
template <int bits, std::size_t count>
HWY_INLINE WordVector encode_vector(const Block<count>& block, std::size_t n, WordVector keyed, std::size_t skipped,
                                    WordVector& check, IntVector& largest) {
  const WordVector word = dither_words(block, keyed, skipped);
  const WordVector dither = hn::And(word, hn::Set(Words(), dither_mask));
  const IntVector index = dithered(block, n + skipped, dither, largest);
  check = hn::Add(check, check_terms<bits>(index, word));
  return hn::BitCast(Words(), index);
}

/// Decodes the received bits at `index_position` against the same vector. With a = k_j − sent, whose low bits are D,
/// the high part of k_i = k_j − D is (a + half the range) >> bits. Half the range is added after the shift: before it,
/// the largest indices would overflow. Returns a.
template <int bits, std::size_t count>
HWY_INLINE WordVector decode_vector(const Block<count>& block, std::size_t n, WordVector keyed, std::size_t skipped,
                                    WordVector sent, WordVector& check, IntVector& largest) {
  const WordVector word = dither_words(block, keyed, skipped);
  const WordVector dither = hn::And(word, hn::Set(Words(), dither_mask));
  const IntVector own = dithered(block, n + skipped, dither, largest);
  const IntVector apart = hn::Sub(own, hn::BitCast(Ints(), sent));
  const auto half_range = hn::Set(Ints(), std::int32_t{1} << (index_position + bits - 1));
  check = hn::Add(check, check_terms<bits>(hn::Add(apart, half_range), word));
  return hn::BitCast(Words(), apart);
}

/// The check from the sums of its terms. They are added in 64 bits, because some compilers' headers add 32-bit lanes as
/// signed numbers, which would overflow.
HWY_INLINE std::uint16_t check_of(WordVector sums) {
  const hn::Repartition<std::uint64_t, Floats> wide_words;
  const auto pairs = hn::BitCast(wide_words, sums);
  const auto low = hn::And(pairs, hn::Set(wide_words, std::uint64_t{0xffffffff}));
  const auto total = hn::SumOfLanes(wide_words, hn::Add(low, hn::ShiftRight<32>(pairs)));
  return parts::check_of(static_cast<std::uint32_t>(hn::GetLane(total)));
}

// ---- packing

/// The second bytes of the words of four vectors, in order.
HWY_INLINE OctetVector pack(WordVector a, WordVector b, WordVector c, WordVector d) {
  const Octets octets;
  const Words words;
  // Each shuffle moves the second bytes of a 128-bit part's four words into one of its words: 0 for a, 1 for b, …
  constexpr std::uint8_t none = 0x80;
  alignas(16) static constexpr std::uint8_t place[4][16] = {
      {1, 5, 9, 13, none, none, none, none, none, none, none, none, none, none, none, none},
      {none, none, none, none, 1, 5, 9, 13, none, none, none, none, none, none, none, none},
      {none, none, none, none, none, none, none, none, 1, 5, 9, 13, none, none, none, none},
      {none, none, none, none, none, none, none, none, none, none, none, none, 1, 5, 9, 13}};
  const auto placed = [&](WordVector vector, int word) HWY_ATTR {
    const OctetVector shuffle = hn::LoadDup128(octets, place[word]);
    return hn::TableLookupBytesOr0(hn::BitCast(octets, vector), shuffle);
  };
  const OctetVector three = hn::Xor3(placed(a, 0), placed(b, 1), placed(c, 2));
  const WordVector mixed = hn::BitCast(words, hn::Xor(three, placed(d, 3)));
  // Word j of part p belongs at place p of group j; vectors have 1, 2 or 4 parts.
  alignas(64) static constexpr std::uint32_t order[3][sum_lanes] = {
      {0, 1, 2, 3}, {0, 4, 1, 5, 2, 6, 3, 7}, {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}};
  const std::size_t vector_parts = hn::Lanes(words) / 4;
  return hn::BitCast(octets, hn::TableLookupLanes(mixed, hn::SetTableIndices(words, order[vector_parts / 2])));
}

/// The bytes at `skipped`, a multiple of a vector's lanes, each in the second byte of a word.
HWY_INLINE WordVector unpack(const std::uint8_t* HWY_RESTRICT block, std::size_t skipped) {
  const Octets octets;
  constexpr std::size_t part_bytes = 16;
  constexpr std::uint8_t none = 0x80;
  alignas(64) static constexpr std::uint8_t spread[4 * part_bytes] = {
      none, 0,  none, none, none, 1,  none, none, none, 2,  none, none, none, 3,  none, none,
      none, 4,  none, none, none, 5,  none, none, none, 6,  none, none, none, 7,  none, none,
      none, 8,  none, none, none, 9,  none, none, none, 10, none, none, none, 11, none, none,
      none, 12, none, none, none, 13, none, none, none, 14, none, none, none, 15, none, none};
  const std::size_t within = skipped % part_bytes;
  const OctetVector bytes = hn::LoadDup128(octets, block + skipped - within);
  return hn::BitCast(Words(), hn::TableLookupBytesOr0(bytes, hn::LoadU(octets, spread + 4 * within)));
}

/// Joins two nibbles at `index_position` of their words to one byte there.
HWY_INLINE WordVector join_nibbles(WordVector low, WordVector high) {
  const auto low_nibble = hn::Set(Words(), 15U << index_position);
  return hn::OrAnd(hn::AndNot(low_nibble, hn::ShiftLeft<4>(high)), low, low_nibble);
}

// ---- encode

/// Encodes the vector at n + skipped (for q4, the two vectors that share bytes). Returns the bytes, one in each word.
template <Codec codec, std::size_t count>
HWY_INLINE WordVector encode_bytes(const Block<count>& block, std::size_t n, WordVector keyed, std::size_t skipped,
                                   WordVector& check, IntVector& largest) {
  constexpr int bits = codec_bits(codec);
  const WordVector low = encode_vector<bits>(block, n, keyed, skipped, check, largest);
  if constexpr (codec == Codec::q8) return low;
  return join_nibbles(low, encode_vector<bits>(block, n, keyed, half_block + skipped, check, largest));
}

/// Encodes a block into `out`. Returns its check, and sets its largest magnitude.
template <Codec codec, std::size_t count>
HWY_INLINE std::uint16_t encode_block(const Block<count>& block, std::uint8_t* HWY_RESTRICT out,
                                      std::uint32_t& largest_magnitude) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  WordVector check = hn::Zero(words);
  IntVector largest = hn::Zero(Ints());
  for (std::size_t n = 0; n < codec_block_bytes(codec); n += 4 * lanes) {
    const WordVector keyed = keyed_elements(block, n);
    const WordVector a = encode_bytes<codec>(block, n, keyed, 0, check, largest);
    const WordVector b = encode_bytes<codec>(block, n, keyed, lanes, check, largest);
    const WordVector c = encode_bytes<codec>(block, n, keyed, 2 * lanes, check, largest);
    const WordVector d = encode_bytes<codec>(block, n, keyed, 3 * lanes, check, largest);
    hn::StoreU(pack(a, b, c, d), Octets(), out + n);
  }
  largest_magnitude = largest_lane(largest);
  return check_of(check);
}

template <Codec codec, std::size_t count>
bool encode_lattice(const FragmentView& view, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                    std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  constexpr std::size_t block_bytes = codec_block_bytes(codec);
  const Sources y(view);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    prefetch_block(y, blocks, b);
    auto* const out = reinterpret_cast<std::uint8_t*>(values.data()) + b * block_bytes;
    std::uint32_t largest = 0;
    const auto encode_with = [&](std::int8_t exponent) HWY_ATTR {
      exponents[b] = exponent;
      checks[b] = encode_block<codec>(Block<count>(y, blocks[b], seed, exponent), out, largest);
    };
    encode_with(parts::raised_exponent(exponents[b], 0));
    if (largest < parts::limit_bits(exponents[b])) [[likely]]
      continue;
    if (largest >= parts::infinity_bits) return false;
    const std::int8_t raised = parts::raised_exponent(exponents[b], largest);
    if (largest < parts::limit_bits(raised)) {
      encode_with(raised);
    } else {  // beyond every step: the scalar definition clamps
      (void)scalar::encode(codec, view, blocks.subspan(b, 1), seed, exponents.subspan(b, 1), checks.subspan(b, 1),
                           values.subspan(b * block_bytes, block_bytes));
    }
  }
  return true;
}

bool encode_f32(const FragmentView& view, std::span<const std::uint32_t> blocks, std::span<std::byte> values) {
  const Sources y(view);
  auto* out = reinterpret_cast<float*>(values.data());
  IntVector largest = hn::Zero(Ints());
  for (const std::uint32_t block : blocks) {
    largest = copy_block(y, block * block_elements, out, largest);
    out += block_elements;
  }
  return largest_lane(largest) < parts::infinity_bits;
}

template <Codec codec>
bool encode_codec(const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                  std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  const auto chosen = Sources(y).count == 1 ? encode_lattice<codec, 1> : encode_lattice<codec, 2>;
  return chosen(y, blocks, seed, exponents, checks, values);
}

bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
            std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  if (codec == Codec::q8) return encode_codec<Codec::q8>(y, blocks, seed, exponents, checks, values);
  if (codec == Codec::q4) return encode_codec<Codec::q4>(y, blocks, seed, exponents, checks, values);
  return encode_f32(y, blocks, values);
}

// ---- outcomes

/// Adds |D| and D² of a vector of packed differences to the sums: |D| in 64-bit lanes, D² in 32-bit lanes.
template <Codec codec>
HWY_INLINE void add_differences(OctetVector packed, WordVector& abs, WordVector& square) {
  const Octets octets;
  const Words words;
  if constexpr (codec == Codec::q8) {
    const hn::Repartition<std::uint16_t, Floats> pairs;
    const hn::Repartition<std::int16_t, Floats> signed_pairs;
    const auto magnitudes = hn::BitCast(octets, hn::Abs(hn::BitCast(hn::RebindToSigned<Octets>(), packed)));
    abs = hn::Add(abs, hn::BitCast(words, hn::SumsOf8(magnitudes)));
    const auto both = hn::BitCast(pairs, magnitudes);
    const auto even = hn::BitCast(signed_pairs, hn::And(both, hn::Set(pairs, std::uint16_t{255})));
    const auto odd = hn::BitCast(signed_pairs, hn::ShiftRight<8>(both));
    IntVector even_sum = hn::BitCast(Ints(), square);
    IntVector odd_sum = hn::Zero(Ints());
    even_sum = hn::ReorderWidenMulAccumulate(Ints(), even, even, even_sum, odd_sum);
    even_sum = hn::ReorderWidenMulAccumulate(Ints(), odd, odd, even_sum, odd_sum);
    square = hn::BitCast(words, hn::Add(even_sum, odd_sum));
  } else {
    alignas(16) static constexpr std::uint8_t magnitude[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1};
    alignas(16) static constexpr std::uint8_t squared[16] = {0, 1, 4, 9, 16, 25, 36, 49, 64, 49, 36, 25, 16, 9, 4, 1};
    const OctetVector magnitudes = hn::LoadDup128(octets, magnitude);
    const OctetVector squares = hn::LoadDup128(octets, squared);
    const auto nibble = hn::Set(octets, std::uint8_t{15});
    const OctetVector low = hn::And(packed, nibble);
    const OctetVector high = hn::And(hn::BitCast(octets, hn::ShiftRight<4>(hn::BitCast(words, packed))), nibble);
    const OctetVector abs_octets =
        hn::Add(hn::TableLookupBytes(magnitudes, low), hn::TableLookupBytes(magnitudes, high));
    const OctetVector square_octets = hn::Add(hn::TableLookupBytes(squares, low), hn::TableLookupBytes(squares, high));
    abs = hn::Add(abs, hn::BitCast(words, hn::SumsOf8(abs_octets)));
    square = hn::Add(square, hn::BitCast(words, hn::SumsOf8(square_octets)));
  }
}

/// The outcome from the sums of a block. Both sums are small, so they are added side by side in 64 bits.
HWY_INLINE BlockOutcome lattice_outcome(WordVector abs, WordVector square, int exponent) {
  const hn::Repartition<std::uint64_t, Floats> wide_words;
  const auto squares = hn::BitCast(wide_words, square);
  const auto square_sums = hn::ShiftLeft<32>(hn::Add(squares, hn::ShiftRight<32>(squares)));
  const std::uint64_t sums =
      hn::GetLane(hn::SumOfLanes(wide_words, hn::Add(square_sums, hn::BitCast(wide_words, abs))));
  return parts::lattice_outcome(static_cast<std::uint32_t>(sums), static_cast<std::uint32_t>(sums >> 32), exponent);
}

template <Codec codec>
HWY_INLINE BlockOutcome lattice_outcome_of(const std::uint8_t* HWY_RESTRICT differences, int exponent) {
  WordVector abs = hn::Zero(Words());
  WordVector square = hn::Zero(Words());
  for (std::size_t n = 0; n < codec_block_bytes(codec); n += hn::Lanes(Octets())) {
    add_differences<codec>(hn::LoadU(Octets(), differences + n), abs, square);
  }
  return lattice_outcome(abs, square, exponent);
}

/// sum_of_lanes() of parts, with the same order of additions.
HWY_INLINE float sum_of(const std::array<float, sum_lanes>& lanes) {
  const hn::CappedTag<float, 4> four;
  const auto first = hn::Add(hn::LoadU(four, lanes.data()), hn::LoadU(four, lanes.data() + 8));
  const auto second = hn::Add(hn::LoadU(four, lanes.data() + 4), hn::LoadU(four, lanes.data() + 12));
  std::array<float, 4> sums;
  hn::StoreU(hn::Add(first, second), four, sums.data());
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/// Outcome of a block of f32 differences, where `difference_at(n)` is the vector at element n. Raises `largest` to the
/// largest magnitude. It goes through the block lane by lane, which for 16 lanes is a single pass.
template <class DifferenceAt>
HWY_INLINE BlockOutcome f32_outcome(DifferenceAt difference_at, IntVector& largest) {
  const Floats floats;
  std::array<float, sum_lanes> abs;
  std::array<float, sum_lanes> square;
  for (std::size_t lane = 0; lane < sum_lanes; lane += hn::Lanes(floats)) {
    FloatVector abs_sum = hn::Zero(floats);
    FloatVector square_sum = hn::Zero(floats);
    for (std::size_t n = lane; n < block_elements; n += sum_lanes) {
      const FloatVector difference = difference_at(n);
      largest = raised_to_magnitude(largest, difference);
      abs_sum = hn::Add(abs_sum, hn::Abs(difference));
      square_sum = hn::Add(square_sum, hn::Mul(difference, difference));
    }
    hn::StoreU(abs_sum, floats, abs.data() + lane);
    hn::StoreU(square_sum, floats, square.data() + lane);
  }
  return parts::f32_outcome(sum_of(abs), sum_of(square));
}

bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                 std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) {
  IntVector largest = hn::Zero(Ints());
  for (std::size_t b = 0; b < outcomes.size(); ++b) {
    const std::byte* const block = differences.data() + b * codec_block_bytes(codec);
    const auto* const packed = reinterpret_cast<const std::uint8_t*>(block);
    if (codec == Codec::f32) {
      const auto* const values = reinterpret_cast<const float*>(block);
      const auto load = [values](std::size_t n) HWY_ATTR { return hn::LoadU(Floats(), values + n); };
      outcomes[b] = f32_outcome(load, largest);
    } else if (codec == Codec::q8) {
      outcomes[b] = lattice_outcome_of<Codec::q8>(packed, exponents[b]);
    } else {
      outcomes[b] = lattice_outcome_of<Codec::q4>(packed, exponents[b]);
    }
    if (parts::bit_is_set(wide, b)) outcomes[b] = parts::wide_outcome();
  }
  return largest_lane(largest) < parts::infinity_bits;
}

// ---- difference

/// Decodes the bytes at n + skipped that encode_bytes() gave. Returns the bytes of D.
template <Codec codec, std::size_t count>
HWY_INLINE WordVector decode_bytes(const Block<count>& block, std::size_t n, WordVector keyed, std::size_t skipped,
                                   const std::uint8_t* HWY_RESTRICT sent, WordVector& check, IntVector& largest) {
  constexpr int bits = codec_bits(codec);
  const WordVector octets = unpack(sent + n, skipped);
  if constexpr (codec == Codec::q8) return decode_vector<bits>(block, n, keyed, skipped, octets, check, largest);
  const auto nibble = hn::Set(Words(), 15U << index_position);
  const WordVector low = hn::And(octets, nibble);
  const WordVector high = hn::And(hn::ShiftRight<4>(octets), nibble);
  return join_nibbles(decode_vector<bits>(block, n, keyed, skipped, low, check, largest),
                      decode_vector<bits>(block, n, keyed, half_block + skipped, high, check, largest));
}

/// The results of decoding a block, besides its differences.
struct Decoded {
  std::uint16_t check;
  std::uint32_t largest;
  BlockOutcome outcome;
};

/// Decodes a block into `out`.
template <Codec codec, std::size_t count>
HWY_INLINE Decoded decode_block(const Block<count>& block, int exponent, const std::uint8_t* HWY_RESTRICT sent,
                                std::uint8_t* HWY_RESTRICT out) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  WordVector check = hn::Zero(words);
  WordVector abs = hn::Zero(words);
  WordVector square = hn::Zero(words);
  IntVector largest = hn::Zero(Ints());
  for (std::size_t n = 0; n < codec_block_bytes(codec); n += 4 * lanes) {
    const WordVector keyed = keyed_elements(block, n);
    const WordVector a = decode_bytes<codec>(block, n, keyed, 0, sent, check, largest);
    const WordVector b = decode_bytes<codec>(block, n, keyed, lanes, sent, check, largest);
    const WordVector c = decode_bytes<codec>(block, n, keyed, 2 * lanes, sent, check, largest);
    const WordVector d = decode_bytes<codec>(block, n, keyed, 3 * lanes, sent, check, largest);
    const OctetVector packed = pack(a, b, c, d);
    add_differences<codec>(packed, abs, square);
    hn::StoreU(packed, Octets(), out + n);
  }
  return {check_of(check), largest_lane(largest), lattice_outcome(abs, square, exponent)};
}

template <Codec codec, std::size_t count>
bool difference_lattice(const FragmentView& view, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                        std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                        const std::uint8_t* values, std::uint8_t* differences, std::span<BlockOutcome> outcomes) {
  constexpr std::size_t block_bytes = codec_block_bytes(codec);
  const Sources y(view);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::uint8_t* const sent = values + b * block_bytes;
    std::uint8_t* const out = differences + b * block_bytes;
    prefetch_block(y, blocks, b);
    prefetch(sent + blocks_ahead * block_bytes, block_bytes);
    const Block<count> block(y, blocks[b], seed, exponents[b]);
    const Decoded decoded = decode_block<codec>(block, exponents[b], sent, out);
    if (decoded.largest >= parts::infinity_bits) return false;
    outcomes[b] = decoded.outcome;
    if (decoded.check == checks[b] && decoded.largest < parts::limit_bits(exponents[b])) continue;
    std::memset(out, 0, block_bytes);
    outcomes[b] = parts::wide_outcome();
  }
  return true;
}

template <Codec codec>
bool difference_codec(const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                      std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                      const std::uint8_t* values, std::uint8_t* differences, std::span<BlockOutcome> outcomes) {
  const auto chosen = Sources(y).count == 1 ? difference_lattice<codec, 1> : difference_lattice<codec, 2>;
  return chosen(y, blocks, seed, exponents, checks, values, differences, outcomes);
}

template <std::size_t count>
bool difference_f32_of(const Sources& y, std::span<const std::uint32_t> blocks, const float* values, float* differences,
                       std::span<BlockOutcome> outcomes) {
  IntVector largest = hn::Zero(Ints());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    prefetch_block(y, blocks, b);
    const std::size_t first = blocks[b] * block_elements;
    const float* const sent = values + b * block_elements;
    float* const out = differences + b * block_elements;
    const auto subtract = [=, &y](std::size_t n) HWY_ATTR {
      const FloatVector difference = hn::Sub(load_sum<count>(y, first + n), hn::LoadU(Floats(), sent + n));
      hn::StoreU(difference, Floats(), out + n);
      return difference;
    };
    outcomes[b] = f32_outcome(subtract, largest);
  }
  return largest_lane(largest) < parts::infinity_bits;
}

bool difference_f32(const FragmentView& view, std::span<const std::uint32_t> blocks, const float* values,
                    float* differences, std::span<BlockOutcome> outcomes) {
  const Sources y(view);
  const auto chosen = y.count == 1 ? difference_f32_of<1> : difference_f32_of<2>;
  return chosen(y, blocks, values, differences, outcomes);
}

bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                std::span<const std::byte> values, std::span<std::byte> differences, std::span<BlockOutcome> outcomes) {
  if (codec == Codec::f32) {
    return difference_f32(y, blocks, reinterpret_cast<const float*>(values.data()),
                          reinterpret_cast<float*>(differences.data()), outcomes);
  }
  const auto* const sent = reinterpret_cast<const std::uint8_t*>(values.data());
  auto* const out = reinterpret_cast<std::uint8_t*>(differences.data());
  return codec == Codec::q8 ? difference_codec<Codec::q8>(y, blocks, seed, exponents, checks, sent, out, outcomes)
                            : difference_codec<Codec::q4>(y, blocks, seed, exponents, checks, sent, out, outcomes);
}

// ---- apply

HWY_INLINE void add_vector(FloatVector difference, float weight, std::size_t n, const float* in, float* out) {
  const Floats floats;
  const FloatVector before = in == nullptr ? hn::Zero(floats) : hn::LoadU(floats, in + n);
  hn::StoreU(hn::Add(before, hn::Mul(difference, hn::Set(floats, weight))), floats, out + n);
}

/// Applies one block. `in` (or null) and `out` start at the block.
template <Codec codec>
HWY_INLINE void apply_block(const std::byte* differences, float weight, const float* in, float* out) {
  const Floats floats;
  const Ints ints;
  const auto* const values = reinterpret_cast<const float*>(differences);
  const auto* const packed = reinterpret_cast<const std::int8_t*>(differences);
  for (std::size_t n = 0; n < block_elements; n += hn::Lanes(floats)) {
    if constexpr (codec == Codec::f32) {
      add_vector(hn::LoadU(floats, values + n), weight, n, in, out);
    } else {
      IntVector number = hn::PromoteTo(ints, hn::LoadU(FewSignedOctets(), packed + n % codec_block_bytes(codec)));
      if constexpr (codec == Codec::q4) {
        if (n < half_block) number = hn::ShiftLeft<4>(number);
        number = hn::ShiftRight<28>(hn::ShiftLeft<24>(number));
      }
      add_vector(hn::ConvertTo(floats, number), weight, n, in, out);
    }
  }
}

/// Copies the blocks from `begin` to before `end` unchanged.
HWY_INLINE void keep_blocks(std::size_t begin, std::size_t end, const float* in, float* out) {
  if (in == out || begin == end) return;
  const std::size_t bytes = (end - begin) * block_elements * sizeof(float);
  if (in == nullptr) {
    std::memset(out + begin * block_elements, 0, bytes);
  } else {
    std::memcpy(out + begin * block_elements, in + begin * block_elements, bytes);
  }
}

template <Codec codec>
void apply_blocks(int shift, int sign, std::span<const std::uint32_t> blocks, std::span<const std::int8_t> exponents,
                  std::span<const std::byte> differences, std::size_t block_count, const float* in, float* out) {
  std::size_t next = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    keep_blocks(next, blocks[b], in, out);
    const int exponent = codec == Codec::f32 ? 0 : exponents[b];
    const std::size_t first = blocks[b] * block_elements;
    apply_block<codec>(differences.data() + b * codec_block_bytes(codec),
                       static_cast<float>(sign) * parts::power_of_two(exponent - shift),
                       in == nullptr ? nullptr : in + first, out + first);
    next = blocks[b] + 1;
  }
  keep_blocks(next, block_count, in, out);
}

void apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
           std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
           const float* in, float* out) {
  const auto chosen = codec == Codec::f32  ? apply_blocks<Codec::f32>
                      : codec == Codec::q8 ? apply_blocks<Codec::q8>
                                           : apply_blocks<Codec::q4>;
  chosen(shift, sign, blocks, exponents, differences, block_count, in, out);
}

bool sum(const FragmentView& view, std::size_t block_count, float* out) {
  const Sources y(view);
  IntVector largest = hn::Zero(Ints());
  for (std::size_t block = 0; block < block_count; ++block) {
    largest = copy_block(y, block * block_elements, out + block * block_elements, largest);
  }
  return largest_lane(largest) < parts::infinity_bits;
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace gossamer::gossip::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace gossamer::gossip {

HWY_EXPORT(encode);
HWY_EXPORT(difference);
HWY_EXPORT(outcomes_of);
HWY_EXPORT(apply);
HWY_EXPORT(sum);

int smallest_exponent(float largest) {
  GOSSAMER_CHECK(std::isfinite(largest));
  return parts::smallest_exponent_of(std::bit_cast<std::uint32_t>(largest) & parts::magnitude_mask);
}

bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
            std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  parts::require_encode(codec, y, blocks, exponents, checks, values);
  return HWY_DYNAMIC_DISPATCH(encode)(codec, y, blocks, seed, exponents, checks, values);
}

bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                std::span<const std::byte> values, std::span<std::byte> differences, std::span<BlockOutcome> outcomes) {
  parts::require_encode(codec, y, blocks, exponents, checks, values);
  parts::require_outcomes(codec, exponents, differences, {}, outcomes);
  GOSSAMER_CHECK(outcomes.size() == blocks.size());
  return HWY_DYNAMIC_DISPATCH(difference)(codec, y, blocks, seed, exponents, checks, values, differences, outcomes);
}

bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                 std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) {
  parts::require_outcomes(codec, exponents, differences, wide, outcomes);
  return HWY_DYNAMIC_DISPATCH(outcomes_of)(codec, exponents, differences, wide, outcomes);
}

void apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
           std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
           const float* in, float* out) {
  parts::require_apply(codec, shift, sign, blocks, exponents, differences, block_count);
  HWY_DYNAMIC_DISPATCH(apply)(codec, shift, sign, blocks, exponents, differences, block_count, in, out);
}

bool sum(const FragmentView& y, std::size_t block_count, float* out) {
  GOSSAMER_CHECK(y.publication != nullptr && block_count <= max_fragment_blocks);
  return HWY_DYNAMIC_DISPATCH(sum)(y, block_count, out);
}

}  // namespace gossamer::gossip

#endif  // HWY_ONCE
