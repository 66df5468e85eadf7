// The lattice codec with SIMD: the kernels of gossip/lattice.hpp for every target of Highway, chosen at run time. They
// give the same bits as gossip/lattice_scalar.cpp, which is where to read what they compute.
//
// A block goes through its values twice: once for the largest magnitude (finite? within the exponent's range?), once
// for the work, from the first-level cache. Vectors have at most 16 lanes, so that a block is always a whole number of
// groups of four. No fused multiply-add and no reordering of fp32 sums anywhere: results do not depend on the target.
//
// Pure functions over the caller's memory, any thread.

#include "gossip/lattice.hpp"

#include <cmath>
#include <cstring>

#include "gossip/lattice_parts.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gossip/lattice.cpp"
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
using Octets = hn::Repartition<std::uint8_t, Floats>;  // as many bytes as a vector has
using FewOctets = hn::Rebind<std::uint8_t, Floats>;    // one byte for each lane of Floats
using FewSignedOctets = hn::Rebind<std::int8_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using IntVector = hn::Vec<Ints>;
using WordVector = hn::Vec<Words>;
using OctetVector = hn::Vec<Octets>;

constexpr std::size_t half_block = block_elements / 2;

// ---- reading a fragment

/// A view without its null pointers, in the same order.
struct Sources {
  const float* arrays[3] = {nullptr, nullptr, nullptr};
  std::size_t count = 0;

  explicit Sources(const FragmentView& y) {
    for (const float* array : {y.publication, y.correction, y.pending}) {
      if (array != nullptr) arrays[count++] = array;
    }
  }
};

HWY_INLINE FloatVector load_sum(const Sources& y, std::size_t index) {
  const Floats floats;
  FloatVector value = hn::LoadU(floats, y.arrays[0] + index);
  if (y.count > 1) value = hn::Add(value, hn::LoadU(floats, y.arrays[1] + index));
  if (y.count > 2) value = hn::Add(value, hn::LoadU(floats, y.arrays[2] + index));
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

/// Copies the sum of the sources into `out` and raises `largest` to its largest magnitude.
HWY_INLINE IntVector copy_block(const Sources& y, std::size_t first, float* HWY_RESTRICT out, IntVector largest) {
  const Floats floats;
  for (std::size_t n = 0; n < block_elements; n += hn::Lanes(floats)) {
    const FloatVector value = load_sum(y, first + n);
    largest = raised_to_magnitude(largest, value);
    hn::StoreU(value, floats, out + n);
  }
  return largest;
}

/// Where the block's values are: in the only source, or summed into `buffer`.
HWY_INLINE const float* read_block(const Sources& y, std::size_t first, float* HWY_RESTRICT buffer,
                                   std::uint32_t& largest_magnitude) {
  const Floats floats;
  IntVector largest = hn::Zero(Ints());
  const float* values = buffer;
  if (y.count == 1) {
    values = y.arrays[0] + first;
    for (std::size_t n = 0; n < block_elements; n += hn::Lanes(floats)) {
      largest = raised_to_magnitude(largest, hn::LoadU(floats, values + n));
    }
  } else {
    largest = copy_block(y, first, buffer, largest);
  }
  largest_magnitude = largest_lane(largest);
  return values;
}

// ---- the lattice

/// What one block needs to dither and scale, the same in every lane but for the element's number.
struct BlockKey {
  std::uint32_t first_word;   ///< dither_word's first xor and shift for element 0 of the block
  std::uint32_t second_word;  ///< the seed's upper half as the second shift leaves it
  float scale;

  BlockKey(std::uint64_t seed, std::uint32_t block, int exponent) : scale(parts::power_of_two(dither_bits - exponent)) {
    const auto key = static_cast<std::uint32_t>(block * block_elements) ^ static_cast<std::uint32_t>(seed);
    const auto upper = static_cast<std::uint32_t>(seed >> 32);
    first_word = key ^ (key >> 16);
    second_word = upper ^ (upper >> 15);
  }
};

/// dither_word() for the elements numbered `element` (under 256) of the block. Shifts are linear over xor, so that
/// those of the key are done once a block.
HWY_INLINE WordVector dither_words(const BlockKey& key, WordVector element) {
  const Words words;
  WordVector x = hn::Mul(hn::Xor(element, hn::Set(words, key.first_word)), hn::Set(words, 0x7feb352dU));
  x = hn::Xor3(x, hn::ShiftRight<15>(x), hn::Set(words, key.second_word));
  x = hn::Mul(x, hn::Set(words, 0x846ca68bU));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

/// The lattice indices with dither_bits more bits below them.
HWY_INLINE IntVector dithered(const BlockKey& key, FloatVector value, WordVector word) {
  const Ints ints;
  const IntVector fixed_point = hn::NearestInt(hn::Mul(value, hn::Set(Floats(), key.scale)));
  return hn::Add(fixed_point, hn::BitCast(ints, hn::And(word, hn::Set(Words(), dither_mask))));
}

template <int bits>
HWY_INLINE WordVector check_terms(IntVector dithered_index, WordVector word) {
  const Words words;
  const WordVector high = hn::BitCast(words, hn::ShiftRight<dither_bits + bits>(dithered_index));
  return hn::Mul(high, hn::Or(word, hn::Set(words, 1U)));
}

/// Encodes one vector: its indices, whose low bits travel.
template <int bits>
HWY_INLINE WordVector encode_vector(const BlockKey& key, const float* HWY_RESTRICT values, std::size_t n,
                                    WordVector& check) {
  const Words words;
  const WordVector word = dither_words(key, hn::Iota(words, static_cast<std::uint32_t>(n)));
  const IntVector index = dithered(key, hn::LoadU(Floats(), values + n), word);
  check = hn::Add(check, check_terms<bits>(index, word));
  return hn::BitCast(words, hn::ShiftRight<dither_bits>(index));
}

/// Decodes one vector against its own values: the differences, of which the low bits count, from the bits sent.
template <int bits>
HWY_INLINE WordVector decode_vector(const BlockKey& key, const float* HWY_RESTRICT values, std::size_t n,
                                    WordVector sent, WordVector& check) {
  const Words words;
  const Ints ints;
  const WordVector word = dither_words(key, hn::Iota(words, static_cast<std::uint32_t>(n)));
  const IntVector own = dithered(key, hn::LoadU(Floats(), values + n), word);
  const WordVector apart = hn::Sub(hn::BitCast(words, hn::ShiftRight<dither_bits>(own)), sent);
  const IntVector top = hn::BitCast(ints, hn::ShiftLeft<32 - bits>(apart));
  check = hn::Add(check, check_terms<bits>(hn::Sub(own, hn::ShiftRight<32 - bits - dither_bits>(top)), word));
  return apart;
}

// ---- packing

/// The low bytes of four vectors, in order.
HWY_INLINE OctetVector pack(WordVector a, WordVector b, WordVector c, WordVector d) {
  const Octets octets;
  const Words words;
  // Each shuffle moves the low bytes of the four words of a 128-bit part into another of its words.
  constexpr std::uint8_t none = 0x80;
  alignas(16) static constexpr std::uint8_t place[4][16] = {
      {0, 4, 8, 12, none, none, none, none, none, none, none, none, none, none, none, none},
      {none, none, none, none, 0, 4, 8, 12, none, none, none, none, none, none, none, none},
      {none, none, none, none, none, none, none, none, 0, 4, 8, 12, none, none, none, none},
      {none, none, none, none, none, none, none, none, none, none, none, none, 0, 4, 8, 12}};
  const auto placed = [&](WordVector vector, int word) HWY_ATTR {
    return hn::BitCast(words,
                       hn::TableLookupBytesOr0(hn::BitCast(octets, vector), hn::LoadDup128(octets, place[word])));
  };
  const WordVector mixed = hn::Or(hn::Xor3(placed(a, 0), placed(b, 1), placed(c, 2)), placed(d, 3));
  // Word j of part p belongs at place p of group j; vectors have 1, 2 or 4 parts.
  alignas(64) static constexpr std::uint32_t order[3][sum_lanes] = {
      {0, 1, 2, 3}, {0, 4, 1, 5, 2, 6, 3, 7}, {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}};
  const std::size_t vector_parts = hn::Lanes(words) / 4;
  return hn::BitCast(octets, hn::TableLookupLanes(mixed, hn::SetTableIndices(words, order[vector_parts / 2])));
}

HWY_INLINE WordVector load_octets(const std::uint8_t* HWY_RESTRICT from) {
  return hn::PromoteTo(Words(), hn::LoadU(FewOctets(), from));
}

HWY_INLINE WordVector join_nibbles(WordVector low, WordVector high) {
  const auto mask = hn::Set(Words(), 15U);
  return hn::Or(hn::And(low, mask), hn::AndNot(mask, hn::ShiftLeft<4>(high)));
}

// ---- encode

HWY_INLINE std::uint32_t encode_block_q8(const BlockKey& key, const float* HWY_RESTRICT values,
                                         std::uint8_t* HWY_RESTRICT out) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  WordVector check = hn::Zero(words);
  for (std::size_t n = 0; n < block_elements; n += 4 * lanes) {
    const WordVector a = encode_vector<8>(key, values, n, check);
    const WordVector b = encode_vector<8>(key, values, n + lanes, check);
    const WordVector c = encode_vector<8>(key, values, n + 2 * lanes, check);
    const WordVector d = encode_vector<8>(key, values, n + 3 * lanes, check);
    hn::StoreU(pack(a, b, c, d), Octets(), out + n);
  }
  return hn::GetLane(hn::SumOfLanes(words, check));
}

HWY_INLINE WordVector encode_pair_q4(const BlockKey& key, const float* HWY_RESTRICT values, std::size_t n,
                                     WordVector& check) {
  const WordVector low = encode_vector<4>(key, values, n, check);
  return join_nibbles(low, encode_vector<4>(key, values, n + half_block, check));
}

HWY_INLINE std::uint32_t encode_block_q4(const BlockKey& key, const float* HWY_RESTRICT values,
                                         std::uint8_t* HWY_RESTRICT out) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  WordVector check = hn::Zero(words);
  for (std::size_t n = 0; n < half_block; n += 4 * lanes) {
    const WordVector a = encode_pair_q4(key, values, n, check);
    const WordVector b = encode_pair_q4(key, values, n + lanes, check);
    const WordVector c = encode_pair_q4(key, values, n + 2 * lanes, check);
    const WordVector d = encode_pair_q4(key, values, n + 3 * lanes, check);
    hn::StoreU(pack(a, b, c, d), Octets(), out + n);
  }
  return hn::GetLane(hn::SumOfLanes(words, check));
}

template <Codec codec>
bool encode_lattice(const FragmentView& view, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                    std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  constexpr std::size_t block_bytes = codec_block_bytes(codec);
  const Sources y(view);
  HWY_ALIGN float buffer[block_elements];
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::uint32_t largest = 0;
    const float* const own = read_block(y, blocks[b] * block_elements, buffer, largest);
    if (largest >= parts::infinity_bits) return false;
    exponents[b] = parts::raised_exponent(exponents[b], largest);
    if (largest >= parts::limit_bits(exponents[b])) [[unlikely]] {  // beyond every step: the definition clamps
      (void)scalar::encode(codec, view, blocks.subspan(b, 1), seed, exponents.subspan(b, 1), checks.subspan(b, 1),
                           values.subspan(b * block_bytes, block_bytes));
      continue;
    }
    const BlockKey key(seed, blocks[b], exponents[b]);
    auto* const out = reinterpret_cast<std::uint8_t*>(values.data()) + b * block_bytes;
    checks[b] = parts::check_of(codec == Codec::q8 ? encode_block_q8(key, own, out) : encode_block_q4(key, own, out));
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

bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
            std::span<std::int8_t> exponents, std::span<std::uint16_t> checks, std::span<std::byte> values) {
  if (codec == Codec::q8) return encode_lattice<Codec::q8>(y, blocks, seed, exponents, checks, values);
  if (codec == Codec::q4) return encode_lattice<Codec::q4>(y, blocks, seed, exponents, checks, values);
  return encode_f32(y, blocks, values);
}

// ---- outcomes

/// Adds up |D| and D² of a vector of magnitudes (bytes up to 128).
HWY_INLINE void add_magnitudes(OctetVector magnitudes, WordVector& abs, IntVector& square_even, IntVector& square_odd) {
  const Ints ints;
  const hn::Repartition<std::uint16_t, Floats> pairs;
  const hn::Repartition<std::int16_t, Floats> signed_pairs;
  abs = hn::Add(abs, hn::BitCast(Words(), hn::SumsOf8(magnitudes)));
  const auto both = hn::BitCast(pairs, magnitudes);
  const auto even = hn::BitCast(signed_pairs, hn::And(both, hn::Set(pairs, std::uint16_t{255})));
  const auto odd = hn::BitCast(signed_pairs, hn::ShiftRight<8>(both));
  square_even = hn::ReorderWidenMulAccumulate(ints, even, even, square_even, square_odd);
  square_even = hn::ReorderWidenMulAccumulate(ints, odd, odd, square_even, square_odd);
}

/// The magnitudes of the numbers in the low nibbles of bytes.
HWY_INLINE OctetVector nibble_magnitudes(OctetVector nibbles) {
  const Octets octets;
  alignas(16) static constexpr std::uint8_t magnitude[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1};
  return hn::TableLookupBytes(hn::LoadDup128(octets, magnitude), nibbles);
}

template <Codec codec>
HWY_INLINE BlockOutcome lattice_outcome(const std::uint8_t* HWY_RESTRICT differences, int exponent) {
  const Octets octets;
  WordVector abs = hn::Zero(Words());
  IntVector square_even = hn::Zero(Ints());
  IntVector square_odd = hn::Zero(Ints());
  for (std::size_t n = 0; n < codec_block_bytes(codec); n += hn::Lanes(octets)) {
    const OctetVector packed = hn::LoadU(octets, differences + n);
    if constexpr (codec == Codec::q8) {
      const auto numbers = hn::BitCast(hn::RebindToSigned<Octets>(), packed);
      add_magnitudes(hn::BitCast(octets, hn::Abs(numbers)), abs, square_even, square_odd);
    } else {
      const auto mask = hn::Set(octets, std::uint8_t{15});
      const auto high = hn::BitCast(octets, hn::ShiftRight<4>(hn::BitCast(Words(), packed)));
      add_magnitudes(nibble_magnitudes(hn::And(packed, mask)), abs, square_even, square_odd);
      add_magnitudes(nibble_magnitudes(hn::And(high, mask)), abs, square_even, square_odd);
    }
  }
  const auto square = hn::SumOfLanes(Ints(), hn::Add(square_even, square_odd));
  return parts::lattice_outcome(hn::GetLane(hn::SumOfLanes(Words(), abs)),
                                static_cast<std::uint32_t>(hn::GetLane(square)), exponent);
}

/// Outcome of an f32 block; raises `largest` to the largest magnitude.
HWY_INLINE BlockOutcome f32_outcome(const float* HWY_RESTRICT differences, IntVector& largest) {
  const Floats floats;
  std::array<float, sum_lanes> abs;
  std::array<float, sum_lanes> square;
  for (std::size_t lane = 0; lane < sum_lanes; lane += hn::Lanes(floats)) {
    FloatVector abs_sum = hn::Zero(floats);
    FloatVector square_sum = hn::Zero(floats);
    for (std::size_t n = lane; n < block_elements; n += sum_lanes) {
      const FloatVector difference = hn::LoadU(floats, differences + n);
      largest = raised_to_magnitude(largest, difference);
      abs_sum = hn::Add(abs_sum, hn::Abs(difference));
      square_sum = hn::Add(square_sum, hn::Mul(difference, difference));
    }
    hn::StoreU(abs_sum, floats, abs.data() + lane);
    hn::StoreU(square_sum, floats, square.data() + lane);
  }
  return parts::f32_outcome(abs, square);
}

bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                 std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) {
  IntVector largest = hn::Zero(Ints());
  for (std::size_t b = 0; b < outcomes.size(); ++b) {
    const std::byte* const block = differences.data() + b * codec_block_bytes(codec);
    const auto* const packed = reinterpret_cast<const std::uint8_t*>(block);
    if (codec == Codec::f32) {
      outcomes[b] = f32_outcome(reinterpret_cast<const float*>(block), largest);
    } else if (codec == Codec::q8) {
      outcomes[b] = lattice_outcome<Codec::q8>(packed, exponents[b]);
    } else {
      outcomes[b] = lattice_outcome<Codec::q4>(packed, exponents[b]);
    }
    if (parts::bit_is_set(wide, b)) outcomes[b] = parts::wide_outcome;
  }
  return largest_lane(largest) < parts::infinity_bits;
}

// ---- difference

HWY_INLINE std::uint32_t decode_block_q8(const BlockKey& key, const float* HWY_RESTRICT values,
                                         const std::uint8_t* HWY_RESTRICT sent, std::uint8_t* HWY_RESTRICT out) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  WordVector check = hn::Zero(words);
  for (std::size_t n = 0; n < block_elements; n += 4 * lanes) {
    const std::size_t m = n + lanes;
    const WordVector a = decode_vector<8>(key, values, n, load_octets(sent + n), check);
    const WordVector b = decode_vector<8>(key, values, m, load_octets(sent + m), check);
    const WordVector c = decode_vector<8>(key, values, m + lanes, load_octets(sent + m + lanes), check);
    const WordVector d = decode_vector<8>(key, values, m + 2 * lanes, load_octets(sent + m + 2 * lanes), check);
    hn::StoreU(pack(a, b, c, d), Octets(), out + n);
  }
  return hn::GetLane(hn::SumOfLanes(words, check));
}

HWY_INLINE WordVector decode_pair_q4(const BlockKey& key, const float* HWY_RESTRICT values, std::size_t n,
                                     const std::uint8_t* HWY_RESTRICT sent, WordVector& check) {
  const WordVector both = load_octets(sent + n);
  const WordVector low = decode_vector<4>(key, values, n, both, check);
  return join_nibbles(low, decode_vector<4>(key, values, n + half_block, hn::ShiftRight<4>(both), check));
}

HWY_INLINE std::uint32_t decode_block_q4(const BlockKey& key, const float* HWY_RESTRICT values,
                                         const std::uint8_t* HWY_RESTRICT sent, std::uint8_t* HWY_RESTRICT out) {
  const Words words;
  const std::size_t lanes = hn::Lanes(words);
  WordVector check = hn::Zero(words);
  for (std::size_t n = 0; n < half_block; n += 4 * lanes) {
    const WordVector a = decode_pair_q4(key, values, n, sent, check);
    const WordVector b = decode_pair_q4(key, values, n + lanes, sent, check);
    const WordVector c = decode_pair_q4(key, values, n + 2 * lanes, sent, check);
    const WordVector d = decode_pair_q4(key, values, n + 3 * lanes, sent, check);
    hn::StoreU(pack(a, b, c, d), Octets(), out + n);
  }
  return hn::GetLane(hn::SumOfLanes(words, check));
}

template <Codec codec>
bool difference_lattice(const FragmentView& view, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                        std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                        const std::uint8_t* values, std::uint8_t* differences, std::span<BlockOutcome> outcomes) {
  constexpr std::size_t block_bytes = codec_block_bytes(codec);
  const Sources y(view);
  HWY_ALIGN float buffer[block_elements];
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::uint32_t largest = 0;
    const float* const own = read_block(y, blocks[b] * block_elements, buffer, largest);
    if (largest >= parts::infinity_bits) return false;
    const std::uint8_t* const sent = values + b * block_bytes;
    std::uint8_t* const out = differences + b * block_bytes;
    bool near = largest < parts::limit_bits(exponents[b]);
    if (near) {
      const BlockKey key(seed, blocks[b], exponents[b]);
      const std::uint32_t check =
          codec == Codec::q8 ? decode_block_q8(key, own, sent, out) : decode_block_q4(key, own, sent, out);
      near = parts::check_of(check) == checks[b];
    }
    if (near) {
      outcomes[b] = lattice_outcome<codec>(out, exponents[b]);
    } else {
      std::memset(out, 0, block_bytes);
      outcomes[b] = parts::wide_outcome;
    }
  }
  return true;
}

bool difference_f32(const FragmentView& view, std::span<const std::uint32_t> blocks, const float* values,
                    float* differences, std::span<BlockOutcome> outcomes) {
  const Floats floats;
  const Sources y(view);
  IntVector largest = hn::Zero(Ints());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    float* const out = differences + b * block_elements;
    for (std::size_t n = 0; n < block_elements; n += hn::Lanes(floats)) {
      const FloatVector own = load_sum(y, blocks[b] * block_elements + n);
      hn::StoreU(hn::Sub(own, hn::LoadU(floats, values + b * block_elements + n)), floats, out + n);
    }
    outcomes[b] = f32_outcome(out, largest);
  }
  return largest_lane(largest) < parts::infinity_bits;
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
  return codec == Codec::q8 ? difference_lattice<Codec::q8>(y, blocks, seed, exponents, checks, sent, out, outcomes)
                            : difference_lattice<Codec::q4>(y, blocks, seed, exponents, checks, sent, out, outcomes);
}

// ---- apply

HWY_INLINE void add_vector(FloatVector difference, float weight, std::size_t n, const float* in, float* out) {
  const Floats floats;
  const FloatVector before = in == nullptr ? hn::Zero(floats) : hn::LoadU(floats, in + n);
  hn::StoreU(hn::Add(before, hn::Mul(difference, hn::Set(floats, weight))), floats, out + n);
}

/// One block: `in` (or null) and `out` start at the block.
template <Codec codec>
HWY_INLINE void apply_block(const std::byte* differences, float weight, const float* in, float* out) {
  const Floats floats;
  const Ints ints;
  const std::size_t lanes = hn::Lanes(floats);
  if constexpr (codec == Codec::f32) {
    const auto* const values = reinterpret_cast<const float*>(differences);
    for (std::size_t n = 0; n < block_elements; n += lanes) {
      add_vector(hn::LoadU(floats, values + n), weight, n, in, out);
    }
  } else {
    const auto* const packed = reinterpret_cast<const std::int8_t*>(differences);
    for (std::size_t n = 0; n < codec_block_bytes(codec); n += lanes) {
      const IntVector octet = hn::PromoteTo(ints, hn::LoadU(FewSignedOctets(), packed + n));
      if constexpr (codec == Codec::q8) {
        add_vector(hn::ConvertTo(floats, octet), weight, n, in, out);
      } else {
        const IntVector low = hn::ShiftRight<28>(hn::ShiftLeft<28>(octet));
        add_vector(hn::ConvertTo(floats, low), weight, n, in, out);
        add_vector(hn::ConvertTo(floats, hn::ShiftRight<4>(octet)), weight, n + half_block, in, out);
      }
    }
  }
}

/// Blocks from `begin` to before `end` stay as they are.
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
