// The work of the CUDA kernels on one block, as a warp does it: the elements of each lane, the order in which lanes are
// summed, and where results are written. The arithmetic for an element is in gossip/arithmetic.hpp.
//
// The code is written for a *warp*, and there are two kinds. On the device a warp is 32 threads, a lane's value is in a
// register, and reductions are shuffles (DeviceWarp, gossip/cuda/kernels.cuh). HostWarp below goes through the lanes
// one after the other. With it everything except the launches and the shuffles is tested bit for bit on machines
// without a GPU. All lanes must call a function that takes a warp; none may return before its last reduction.
//
// Each value is read from memory once (floats four at a time) and kept in registers.
//
// This is C++17 for host and device. Memory is the device's, aligned to 16 bytes. These are pure functions over it.

#pragma once

#include "gossip/arithmetic.hpp"

namespace gossamer::gossip::cuda {

inline constexpr unsigned half_block = static_cast<unsigned>(block_elements) / 2;
/// Number of lanes for one block of a lattice codec. Each has four elements of each half, which share bytes for q4.
inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned lane_elements = static_cast<unsigned>(block_elements) / warp_lanes;
/// For fp32 differences there is one lane for each partial sum, so that the sums are added in the fixed order.
inline constexpr unsigned sum_lanes = static_cast<unsigned>(parts::sum_lanes);
inline constexpr unsigned lane_terms = static_cast<unsigned>(block_elements) / sum_lanes;

struct alignas(16) Four {
  float at[4];
};

/// A lane's values of a block: elements 4·lane … + 3, and the same half a block further.
struct LaneValues {
  Four half[2];
};

[[nodiscard]] GOSSAMER_ANYWHERE constexpr unsigned element_of(unsigned lane, unsigned n) {
  return (n / 4) * half_block + 4 * lane + n % 4;
}

// ---- a warp that goes through its lanes one after the other

/// A value for each lane of a HostWarp.
template <class T, unsigned lane_count>
struct PerLane {
  T lane[lane_count];
};

template <unsigned lane_count>
struct HostWarp {
  template <class T>
  using Each = PerLane<T, lane_count>;

  template <class Work>
  [[nodiscard]] auto each(Work work) const {
    Each<decltype(work(0U))> results{};
    for (unsigned lane = 0; lane < lane_count; ++lane)
      results.lane[lane] = work(lane);
    return results;
  }
  template <class Work>
  void run(Work work) const {
    for (unsigned lane = 0; lane < lane_count; ++lane)
      work(lane);
  }
  /// Runs `work` for one lane only.
  template <class Work>
  void once(Work work) const {
    work();
  }
  template <class T>
  [[nodiscard]] static const T& of(const Each<T>& values, unsigned lane) {
    return values.lane[lane];
  }
  [[nodiscard]] static std::uint32_t largest(const Each<std::uint32_t>& values) {
    std::uint32_t most = 0;
    for (const std::uint32_t value : values.lane)
      most = most < value ? value : most;
    return most;
  }
  [[nodiscard]] static std::uint32_t sum(const Each<std::uint32_t>& values) {
    std::uint32_t total = 0;
    for (const std::uint32_t value : values.lane)
      total += value;
    return total;
  }
  /// Adds the upper half of the lanes to the lower half until one lane is left.
  [[nodiscard]] static float ordered_sum(Each<float> values) {
    for (unsigned width = lane_count / 2; width > 0; width /= 2) {
      for (unsigned lane = 0; lane < width; ++lane)
        values.lane[lane] += values.lane[lane + width];
    }
    return values.lane[0];
  }
};

// ---- reading and writing

[[nodiscard]] GOSSAMER_ANYWHERE inline Four load_four(const float* from) {
  return *reinterpret_cast<const Four*>(from);
}
GOSSAMER_ANYWHERE inline void store_four(float* to, const Four& values) {
  *reinterpret_cast<Four*>(to) = values;
}

[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t load_word(const std::uint8_t* from) {
  return *reinterpret_cast<const std::uint32_t*>(from);
}
GOSSAMER_ANYWHERE inline void store_word(std::uint8_t* to, std::uint32_t word) {
  *reinterpret_cast<std::uint32_t*>(to) = word;
}

GOSSAMER_ANYWHERE inline void add_four(Four& values, const float* more) {
  const Four other = load_four(more);
  for (unsigned n = 0; n < 4; ++n)
    values.at[n] += other.at[n];
}

/// y at `first` and the three elements after it.
[[nodiscard]] GOSSAMER_ANYWHERE inline Four load_view(const FragmentView& y, std::size_t first) {
  Four values = load_four(y.publication + first);
  if (y.correction != nullptr) add_four(values, y.correction + first);
  return values;
}

[[nodiscard]] GOSSAMER_ANYWHERE inline LaneValues load_lane(const FragmentView& y, std::size_t block, unsigned lane) {
  const std::size_t first = block * block_elements + 4 * lane;
  return {{load_view(y, first), load_view(y, first + half_block)}};
}

[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t largest_of(const LaneValues& values) {
  std::uint32_t most = 0;
  for (unsigned n = 0; n < lane_elements; ++n) {
    const std::uint32_t twice = __builtin_bit_cast(std::uint32_t, values.half[n / 4].at[n % 4]) << 1;  // no sign
    most = most < twice ? twice : most;
  }
  return most >> 1;
}

// ---- four bytes of a word at once

inline constexpr std::uint32_t each_byte = 0x01010101U;

/// Byte `at` of four words.
template <unsigned at>
[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t bytes_of(const std::uint32_t* words) {
#ifdef __CUDA_ARCH__
  constexpr unsigned both = (4 + at) << 4 | at;
  return __byte_perm(__byte_perm(words[0], words[1], both), __byte_perm(words[2], words[3], both), 0x5410);
#else
  std::uint32_t bytes = 0;
  for (unsigned n = 0; n < 4; ++n)
    bytes |= (words[n] >> (8 * at) & 255U) << (8 * n);
  return bytes;
#endif
}

/// Byte n as a number in two's complement.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::int32_t signed_byte(std::uint32_t word, unsigned n) {
  return static_cast<std::int8_t>(word >> (8 * n));
}

/// sum + Σ a_n · b_n over the bytes of both words, without signs.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t dot(std::uint32_t a, std::uint32_t b, std::uint32_t sum) {
#ifdef __CUDA_ARCH__
  return __dp4a(a, b, sum);
#else
  for (unsigned n = 0; n < 4; ++n)
    sum += (a >> (8 * n) & 255U) * (b >> (8 * n) & 255U);
  return sum;
#endif
}

/// a − b in each byte.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t byte_differences(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t high = 0x80 * each_byte;
  return ((a | high) - (b & ~high)) ^ ((a ^ ~b) & high);
}

/// The low four bits of each byte, read as a number in two's complement: bytes in two's complement.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t widened_nibbles(std::uint32_t word) {
  const std::uint32_t low = word & 15 * each_byte;
  return low + (low & 8 * each_byte) * (0xf0 / 8);
}

/// |n| of each byte n in two's complement, up to 128.
[[nodiscard]] GOSSAMER_ANYWHERE constexpr std::uint32_t byte_magnitudes(std::uint32_t word) {
  const std::uint32_t negative = word >> 7 & each_byte;
  return (word ^ negative * 255) + negative;
}

/// A lane's eight packed numbers as bytes in two's complement: four of each half.
struct LaneBytes {
  std::uint32_t half[2] = {};
};

/// With q8 a lane's numbers are four bytes of each half of the block; with q4 four bytes in all, the first half's
/// numbers in their low four bits.
template <int bits>
[[nodiscard]] GOSSAMER_ANYWHERE inline LaneBytes unpacked(std::uint32_t word, std::uint32_t other_word) {
  if constexpr (bits == 8) return {{word, other_word}};
  return {{widened_nibbles(word), widened_nibbles(word >> 4)}};
}
template <int bits>
[[nodiscard]] GOSSAMER_ANYWHERE inline LaneBytes load_bytes(const std::uint8_t* block, unsigned lane) {
  const std::uint8_t* const own = block + 4 * lane;
  return unpacked<bits>(load_word(own), bits == 8 ? load_word(own + half_block) : 0);
}
template <int bits>
GOSSAMER_ANYWHERE inline void store_bytes(const LaneBytes& bytes, std::uint8_t* block, unsigned lane) {
  std::uint8_t* const own = block + 4 * lane;
  if constexpr (bits == 8) {
    store_word(own, bytes.half[0]);
    store_word(own + half_block, bytes.half[1]);
  } else {
    store_word(own, (bytes.half[0] & 15 * each_byte) | (bytes.half[1] << 4 & 0xf0 * each_byte));
  }
}

// ---- the lattice codecs

/// Four elements on the lattice.
struct FourOnLattice {
  std::uint32_t word[4];   ///< dither_word()
  std::int32_t raised[4];  ///< parts::dithered(): the indices, with dither_bits more bits below them

  /// The low `bits` of the indices, as bytes.
  template <int bits>
  [[nodiscard]] GOSSAMER_ANYWHERE std::uint32_t index_bytes() const {
    // An index begins at bit 11. For q8 each word is shifted up by 5, so that the low bits are byte 2. For q4 they are
    // in byte 1, and the four bytes are shifted down together.
    static_assert(dither_bits == 11);
    std::uint32_t words[4];
    for (unsigned n = 0; n < 4; ++n)
      words[n] = static_cast<std::uint32_t>(raised[n]) << (bits == 8 ? 5 : 0);
    return bits == 8 ? bytes_of<2>(words) : bytes_of<1>(words) >> 3 & 15 * each_byte;
  }
};

/// `values` are within the exponent's range. `first`: the number of the first element. It is a multiple of four, so
/// that only the two lowest bits of the four elements' numbers differ.
[[nodiscard]] GOSSAMER_ANYWHERE inline FourOnLattice on_lattice(const Four& values, int exponent, std::uint64_t seed,
                                                                std::uint32_t first) {
  const std::uint32_t x = first ^ static_cast<std::uint32_t>(seed);
  const std::uint32_t mixed = x ^ (x >> 16);
  FourOnLattice four;
  for (std::uint32_t n = 0; n < 4; ++n) {
    four.word[n] = dither_word_of(mixed ^ n, dither_key(seed));
    four.raised[n] = parts::dithered_within(values.at[n], exponent, four.word[n]);
  }
  return four;
}

/// Encodes a block of y into `out`. False, in all lanes, if y is not finite.
template <int bits, class Warp>
[[nodiscard]] GOSSAMER_ANYWHERE bool encode_block(const Warp& warp, const FragmentView& y, std::uint32_t block,
                                                  std::uint64_t seed, std::int8_t* exponent, std::uint16_t* check,
                                                  std::uint8_t* out) {
  const std::int8_t wanted = *exponent;  // read here, so that all reads are under way at the same time
  const auto own = warp.each([&](unsigned lane) { return load_lane(y, block, lane); });
  const std::uint32_t largest = warp.largest(warp.each([&](unsigned lane) { return largest_of(warp.of(own, lane)); }));
  if (largest >= parts::infinity_bits) return false;
  const std::int8_t used = parts::raised_exponent(wanted, largest);
  const bool beyond = largest >= parts::limit_bits(used);
  const auto first = static_cast<std::uint32_t>(block * block_elements);
  const auto terms = warp.each([&](unsigned lane) {
    LaneValues values = warp.of(own, lane);
    for (unsigned n = 0; beyond && n < lane_elements; ++n)  // `beyond` occurs with the largest exponent only
      values.half[n / 4].at[n % 4] = parts::clamped_value(values.half[n / 4].at[n % 4], used);
    LaneBytes bytes;
    std::uint32_t sum = 0;
    for (unsigned half = 0; half < 2; ++half) {
      const FourOnLattice four = on_lattice(values.half[half], used, seed, first + element_of(lane, 4 * half));
      for (unsigned n = 0; n < 4; ++n)
        sum += parts::check_term(four.raised[n] >> dither_bits, bits, four.word[n]);
      bytes.half[half] = four.index_bytes<bits>();
    }
    store_bytes<bits>(bytes, out, lane);
    return sum;
  });
  const std::uint32_t sum = warp.sum(terms);
  warp.once([&] {
    *exponent = used;
    *check = parts::check_of(sum);
  });
  return true;
}

/// Sums of |D| and D² of a lane. Both stay far below 2^32 over a block.
struct Moments {
  std::uint32_t abs = 0;
  std::uint32_t square = 0;

  /// Adds four numbers, bytes in two's complement.
  GOSSAMER_ANYWHERE void add(std::uint32_t bytes) {
    const std::uint32_t magnitudes = byte_magnitudes(bytes);
    abs = dot(magnitudes, each_byte, abs);
    square = dot(magnitudes, magnitudes, square);
  }
};

template <class Warp, class EachMoments>
[[nodiscard]] GOSSAMER_ANYWHERE BlockOutcome outcome_of_moments(const Warp& warp, const EachMoments& moments,
                                                                int exponent) {
  const std::uint32_t abs = warp.sum(warp.each([&](unsigned lane) { return warp.of(moments, lane).abs; }));
  const std::uint32_t square = warp.sum(warp.each([&](unsigned lane) { return warp.of(moments, lane).square; }));
  return parts::lattice_outcome(abs, square, exponent);
}

/// The results of decoding in one lane.
struct LaneDecoded {
  LaneBytes differences;
  Moments moments;
  std::uint32_t check = 0;
};

/// All values are within the exponent's range.
template <int bits>
[[nodiscard]] GOSSAMER_ANYWHERE LaneDecoded decode_lane(const LaneValues& own, std::uint32_t first, unsigned lane,
                                                        std::uint64_t seed, int exponent, const LaneBytes& received) {
  LaneDecoded decoded;
  for (unsigned half = 0; half < 2; ++half) {
    const FourOnLattice four = on_lattice(own.half[half], exponent, seed, first + element_of(lane, 4 * half));
    const std::uint32_t apart = byte_differences(four.index_bytes<bits>(), received.half[half]);
    const std::uint32_t differences = bits == 8 ? apart : widened_nibbles(apart);
    for (unsigned n = 0; n < 4; ++n) {
      const std::int32_t sent = (four.raised[n] >> dither_bits) - signed_byte(differences, n);
      decoded.check += parts::check_term(sent, bits, four.word[n]);
    }
    decoded.moments.add(differences);
    decoded.differences.half[half] = differences;
  }
  return decoded;
}

/// Decodes a block against y. False, in all lanes, if y is not finite.
template <int bits, class Warp>
[[nodiscard]] GOSSAMER_ANYWHERE bool difference_block(const Warp& warp, const FragmentView& y, std::uint32_t block,
                                                      std::uint64_t seed, std::int8_t exponent, std::uint16_t check,
                                                      const std::uint8_t* sent, std::uint8_t* out,
                                                      BlockOutcome* outcome) {
  const auto received = warp.each([&](unsigned lane) { return load_bytes<bits>(sent, lane); });
  const auto own = warp.each([&](unsigned lane) { return load_lane(y, block, lane); });
  const std::uint32_t largest = warp.largest(warp.each([&](unsigned lane) { return largest_of(warp.of(own, lane)); }));
  if (largest >= parts::infinity_bits) return false;
  const auto nothing = [&] {
    warp.run([&](unsigned lane) { store_bytes<bits>({}, out, lane); });
    warp.once([&] { *outcome = parts::wide_outcome(); });
    return true;
  };
  if (largest >= parts::limit_bits(exponent)) return nothing();
  const auto first = static_cast<std::uint32_t>(block * block_elements);
  const auto decoded = warp.each([&](unsigned lane) {
    return decode_lane<bits>(warp.of(own, lane), first, lane, seed, exponent, warp.of(received, lane));
  });
  const std::uint32_t sum = warp.sum(warp.each([&](unsigned lane) { return warp.of(decoded, lane).check; }));
  if (parts::check_of(sum) != check) return nothing();
  const auto moments = warp.each([&](unsigned lane) { return warp.of(decoded, lane).moments; });
  const BlockOutcome found = outcome_of_moments(warp, moments, exponent);
  warp.run([&](unsigned lane) { store_bytes<bits>(warp.of(decoded, lane).differences, out, lane); });
  warp.once([&] { *outcome = found; });
  return true;
}

/// A block's packed differences are read by `outcome_lanes` lanes, and each lane reads two pieces of 16 bytes.
inline constexpr unsigned pieces_a_lane = 2;
template <int bits>
inline constexpr unsigned outcome_lanes = static_cast<unsigned>(block_elements) * bits / 8 / (16 * pieces_a_lane);

struct alignas(16) FourWords {
  std::uint32_t at[4];
};

/// Computes the outcome again from packed differences. The warp has outcome_lanes<bits> lanes.
template <int bits, class Warp>
GOSSAMER_ANYWHERE void outcome_block(const Warp& warp, int exponent, const std::uint8_t* differences, bool wide,
                                     BlockOutcome* outcome) {
  const auto moments = warp.each([&](unsigned lane) {
    FourWords packed[pieces_a_lane];
    for (unsigned p = 0; p < pieces_a_lane; ++p)
      packed[p] = reinterpret_cast<const FourWords*>(differences)[p * outcome_lanes<bits> + lane];
    Moments sums;
    for (const FourWords& piece : packed) {
      for (const std::uint32_t word : piece.at) {
        const LaneBytes bytes = unpacked<bits>(word, 0);
        sums.add(bytes.half[0]);
        if constexpr (bits == 4) sums.add(bytes.half[1]);
      }
    }
    return sums;
  });
  const BlockOutcome found = outcome_of_moments(warp, moments, exponent);
  warp.once([&] { *outcome = wide ? parts::wide_outcome() : found; });
}

// ---- fp32 differences: lane l of sum_lanes has elements l, l + 16, …

/// A lane's sums over its elements.
struct LaneSums {
  float abs = 0;
  float square = 0;
  std::uint32_t largest = 0;

  GOSSAMER_ANYWHERE void add(float difference) {
    abs += difference < 0 ? -difference : difference;
    square += difference * difference;
    const std::uint32_t magnitude = parts::magnitude_of(difference);
    largest = largest < magnitude ? magnitude : largest;
  }
};

template <class Warp, class EachSums>
[[nodiscard]] GOSSAMER_ANYWHERE bool outcome_of_sums(const Warp& warp, const EachSums& sums, bool wide,
                                                     BlockOutcome* outcome) {
  const float abs = warp.ordered_sum(warp.each([&](unsigned lane) { return warp.of(sums, lane).abs; }));
  const float square = warp.ordered_sum(warp.each([&](unsigned lane) { return warp.of(sums, lane).square; }));
  const std::uint32_t largest = warp.largest(warp.each([&](unsigned lane) { return warp.of(sums, lane).largest; }));
  warp.once([&] { *outcome = wide ? parts::wide_outcome() : parts::f32_outcome(abs, square); });
  return largest < parts::infinity_bits;
}

/// out = y − sent. False if a difference is not finite.
template <class Warp>
[[nodiscard]] GOSSAMER_ANYWHERE bool difference_block_f32(const Warp& warp, const FragmentView& y, std::uint32_t block,
                                                          const float* sent, float* out, BlockOutcome* outcome) {
  const std::size_t first = block * block_elements;
  const auto sums = warp.each([&](unsigned lane) {
    // Everything is read before anything is written, because the compiler must assume that the arrays overlap.
    float apart[lane_terms];
    for (unsigned n = 0; n < lane_terms; ++n)
      apart[n] = y.publication[first + n * sum_lanes + lane];
    if (y.correction != nullptr) {
      for (unsigned n = 0; n < lane_terms; ++n)
        apart[n] += y.correction[first + n * sum_lanes + lane];
    }
    LaneSums found;
    for (unsigned n = 0; n < lane_terms; ++n) {
      apart[n] -= sent[n * sum_lanes + lane];
      found.add(apart[n]);
    }
    for (unsigned n = 0; n < lane_terms; ++n)
      out[n * sum_lanes + lane] = apart[n];
    return found;
  });
  return outcome_of_sums(warp, sums, false, outcome);
}

template <class Warp>
[[nodiscard]] GOSSAMER_ANYWHERE bool outcome_block_f32(const Warp& warp, const float* differences, bool wide,
                                                       BlockOutcome* outcome) {
  const auto sums = warp.each([&](unsigned lane) {
    LaneSums found;
    for (unsigned n = 0; n < lane_terms; ++n)
      found.add(differences[n * sum_lanes + lane]);
    return found;
  });
  return outcome_of_sums(warp, sums, wide, outcome);
}

// ---- work without a reduction: a lane's part of a block

/// out = y. Returns the largest magnitude that the lane copied.
GOSSAMER_ANYWHERE inline std::uint32_t copy_lane(const FragmentView& y, std::size_t block, unsigned lane, float* out) {
  const LaneValues values = load_lane(y, block, lane);
  store_four(out + 4 * lane, values.half[0]);
  store_four(out + half_block + 4 * lane, values.half[1]);
  return largest_of(values);
}

/// The place of a block in the ascending list of `count` among a fragment's `block_count` blocks; `count` if it is not
/// in the list. A block's place is at most its own number, and at least its number less the number of missing blocks.
/// So there is nothing to search in a complete list.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t place_of(std::uint32_t block, const std::uint32_t* blocks,
                                                              std::uint32_t count, std::uint32_t block_count) {
  const std::uint32_t missing = block_count - count;
  std::uint32_t low = block < missing ? 0 : block - missing;
  std::uint32_t high = block < count ? block : count;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (blocks[middle] < block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && blocks[low] == block ? low : count;
}

/// D of four elements in one half of a block.
template <Codec codec>
[[nodiscard]] GOSSAMER_ANYWHERE Four differences_of(const std::uint8_t* block, unsigned lane, unsigned half) {
  if constexpr (codec == Codec::f32) {
    return load_four(reinterpret_cast<const float*>(block) + half * half_block + 4 * lane);
  } else {
    const LaneBytes bytes = load_bytes<codec_bits(codec)>(block, lane);
    Four values{};
    for (unsigned n = 0; n < 4; ++n)
      values.at[n] = static_cast<float>(signed_byte(bytes.half[half], n));
    return values;
  }
}

/// out = in + weight · D for a lane's part of a block; `differences` null: out = in. `in` may be null (zeros).
template <Codec codec>
GOSSAMER_ANYWHERE inline void apply_lane(const std::uint8_t* differences, float weight, const float* in, float* out,
                                         unsigned lane) {
  if (differences == nullptr && in == out) return;
  for (unsigned half = 0; half < 2; ++half) {
    const std::size_t first = half * half_block + 4 * lane;
    Four values{};
    if (in != nullptr) values = load_four(in + first);
    if (differences != nullptr) {
      const Four apart = differences_of<codec>(differences, lane, half);
      for (unsigned n = 0; n < 4; ++n)
        values.at[n] += weight * apart.at[n];
    }
    store_four(out + first, values);
  }
}

// ---- the outer optimiser

/// The arrays of an outer step in the device's memory (gossip/exchange/outer.hpp). `left_out`: pairs of first and last,
/// ascending.
struct OuterArrays {
  FragmentView y;
  const float* in = nullptr;
  float* out = nullptr;
  float* anchor = nullptr;
  float* momentum = nullptr;
  const std::uint32_t* left_out = nullptr;
  std::uint32_t left_out_count = 0;
  float mu = 0;
  float rate = 0;
};

[[nodiscard]] GOSSAMER_ANYWHERE inline bool is_left_out(const OuterArrays& outer, std::uint32_t element) {
  std::uint32_t low = 0;
  std::uint32_t high = outer.left_out_count;
  while (low < high) {  // the first range that ends beyond the element
    const std::uint32_t middle = (low + high) / 2;
    if (outer.left_out[2 * middle + 1] <= element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < outer.left_out_count && outer.left_out[2 * low] <= element;
}

/// An element's x and its step, and whether both are finite.
struct OuterElement {
  float x;
  parts::OuterStep step;
  bool finite;
};

[[nodiscard]] GOSSAMER_ANYWHERE inline OuterElement outer_element(const OuterArrays& outer, std::uint32_t e) {
  const float x = outer.y.at(e);
  const parts::OuterStep step = parts::outer_step(outer.mu, outer.rate, x, outer.anchor[e], outer.momentum[e]);
  return {x, step,
          parts::magnitude_of(x) < parts::infinity_bits && parts::magnitude_of(x + step.push) < parts::infinity_bits};
}

/// Writes an element after all were found finite. The element stays as it is if the client has made it infinite or NaN
/// since.
GOSSAMER_ANYWHERE inline void write_outer_element(const OuterArrays& outer, std::uint32_t e) {
  const OuterElement element = outer_element(outer, e);
  const float push = element.finite && !is_left_out(outer, e) ? element.step.push : 0.0F;
  outer.out[e] = (outer.in == nullptr ? 0.0F : outer.in[e]) + push;
  if (!element.finite) return;
  outer.anchor[e] = element.x + push;
  outer.momentum[e] = element.step.momentum;
}

// ---- the mean among a node's clients

/// One client's part in the device's memory (gossip/exchange/local_mean.hpp).
struct ClientArrays {
  const float* snapshot = nullptr;
  const float* base = nullptr;
  const float* base_correction = nullptr;
  float* correction = nullptr;
  float weight = 1;
  std::uint8_t check = 0;     ///< it is checked for NaN and infinity
  std::uint8_t progress = 0;  ///< its progress is taken
  std::uint8_t replace = 0;
};

/// Findings about a client, as bits of one word. Any thread may set them, in any order.
inline constexpr std::uint32_t mean_not_finite = 1;
inline constexpr std::uint32_t mean_moved = 2;
inline constexpr std::uint32_t mean_differs = 4;

// Each of these functions works on the four elements from `first` on, which is a multiple of four.

[[nodiscard]] GOSSAMER_ANYWHERE inline bool mean_finite(const ClientArrays& client, std::size_t first) {
  const Four snapshot = load_four(client.snapshot + first);
  bool finite = true;
  for (const float value : snapshot.at)
    finite = finite && parts::magnitude_of(value) < parts::too_large_bits;
  return finite;
}

/// Takes the client's progress into y. True if there was any.
[[nodiscard]] GOSSAMER_ANYWHERE inline bool mean_take(const ClientArrays& client, std::size_t first, Four& y) {
  Four from = load_four(client.base + first);
  const Four snapshot = load_four(client.snapshot + first);
  if (client.base_correction != nullptr) add_four(from, client.base_correction + first);
  std::uint32_t moved = 0;
  for (unsigned n = 0; n < 4; ++n) {
    const float progress = snapshot.at[n] - from.at[n];
    moved |= parts::magnitude_of(progress);
    y.at[n] = parts::with_progress(y.at[n], client.weight, progress);
  }
  return moved != 0;
}

/// Writes the client's correction. True if it is not zero.
[[nodiscard]] GOSSAMER_ANYWHERE inline bool mean_correct(const ClientArrays& client, std::size_t first, const Four& y) {
  Four correction = y;
  std::uint32_t differs = client.replace;
  if (client.replace == 0) {
    const Four snapshot = load_four(client.snapshot + first);
    for (unsigned n = 0; n < 4; ++n) {
      correction.at[n] -= snapshot.at[n];
      differs |= parts::magnitude_of(correction.at[n]);
    }
  }
  store_four(client.correction + first, correction);
  return differs != 0;
}

}  // namespace gossamer::gossip::cuda
