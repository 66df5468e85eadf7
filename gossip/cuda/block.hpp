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
    const std::uint32_t magnitude = parts::magnitude_of(values.half[n / 4].at[n % 4]);
    most = most < magnitude ? magnitude : most;
  }
  return most;
}

/// The packed numbers of a lane: for q8 four bytes of each half, for q4 four bytes in all.
template <int bits>
struct Packed {
  std::uint32_t word[bits / 4] = {};

  /// Sets number n of the lane.
  GOSSAMER_ANYWHERE void set(unsigned n, std::int32_t number) {
    if constexpr (bits == 8) {
      word[n / 4] |= (static_cast<std::uint32_t>(number) & 255U) << (8 * (n % 4));
    } else {
      word[0] |= (static_cast<std::uint32_t>(number) & 15U) << (8 * (n % 4) + 4 * (n / 4));
    }
  }
  [[nodiscard]] GOSSAMER_ANYWHERE std::int32_t get(unsigned n) const {
    if constexpr (bits == 8) return parts::sign_extended(word[n / 4] >> (8 * (n % 4)), 8);
    return parts::sign_extended(word[0] >> (8 * (n % 4) + 4 * (n / 4)), 4);
  }
  GOSSAMER_ANYWHERE static Packed load(const std::uint8_t* block, unsigned lane) {
    Packed packed;
    for (unsigned w = 0; w < bits / 4; ++w)
      packed.word[w] = load_word(block + w * half_block + 4 * lane);
    return packed;
  }
  GOSSAMER_ANYWHERE void store(std::uint8_t* block, unsigned lane) const {
    for (unsigned w = 0; w < bits / 4; ++w)
      store_word(block + w * half_block + 4 * lane, word[w]);
  }
};

// ---- the lattice codecs

/// Encodes a block of y into `out`. False, in all lanes, if y is not finite.
template <int bits, class Warp>
[[nodiscard]] GOSSAMER_ANYWHERE bool encode_block(const Warp& warp, const FragmentView& y, std::uint32_t block,
                                                  std::uint64_t seed, std::int8_t* exponent, std::uint16_t* check,
                                                  std::uint8_t* out) {
  const auto own = warp.each([&](unsigned lane) { return load_lane(y, block, lane); });
  const std::uint32_t largest = warp.largest(warp.each([&](unsigned lane) { return largest_of(warp.of(own, lane)); }));
  if (largest >= parts::infinity_bits) return false;
  const std::int8_t used = parts::raised_exponent(*exponent, largest);
  const auto first = static_cast<std::uint32_t>(block * block_elements);
  const auto terms = warp.each([&](unsigned lane) {
    Packed<bits> packed;
    std::uint32_t sum = 0;
    for (unsigned n = 0; n < lane_elements; ++n) {
      const std::uint32_t word = dither_word(seed, first + element_of(lane, n));
      const std::int32_t index = parts::lattice_index(warp.of(own, lane).half[n / 4].at[n % 4], used, word);
      sum += parts::check_term(index, bits, word);
      packed.set(n, index);
    }
    packed.store(out, lane);
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

  GOSSAMER_ANYWHERE void add(std::int32_t number) {
    abs += static_cast<std::uint32_t>(number < 0 ? -number : number);
    square += static_cast<std::uint32_t>(number * number);
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
template <int bits>
struct LaneDecoded {
  Packed<bits> differences;
  Moments moments;
  std::uint32_t check = 0;
};

template <int bits>
[[nodiscard]] GOSSAMER_ANYWHERE LaneDecoded<bits> decode_lane(const LaneValues& own, std::uint32_t first, unsigned lane,
                                                              std::uint64_t seed, int exponent,
                                                              const std::uint8_t* sent) {
  const Packed<bits> received = Packed<bits>::load(sent, lane);
  LaneDecoded<bits> decoded;
  for (unsigned n = 0; n < lane_elements; ++n) {
    const std::uint32_t word = dither_word(seed, first + element_of(lane, n));
    const std::int32_t index = parts::lattice_index(own.half[n / 4].at[n % 4], exponent, word);
    const std::int32_t difference = parts::index_difference(index, received.get(n), bits);
    decoded.check += parts::check_term(index - difference, bits, word);
    decoded.differences.set(n, difference);
    decoded.moments.add(difference);
  }
  return decoded;
}

/// Decodes a block against y. False, in all lanes, if y is not finite.
template <int bits, class Warp>
[[nodiscard]] GOSSAMER_ANYWHERE bool difference_block(const Warp& warp, const FragmentView& y, std::uint32_t block,
                                                      std::uint64_t seed, std::int8_t exponent, std::uint16_t check,
                                                      const std::uint8_t* sent, std::uint8_t* out,
                                                      BlockOutcome* outcome) {
  const auto own = warp.each([&](unsigned lane) { return load_lane(y, block, lane); });
  const std::uint32_t largest = warp.largest(warp.each([&](unsigned lane) { return largest_of(warp.of(own, lane)); }));
  if (largest >= parts::infinity_bits) return false;
  const auto first = static_cast<std::uint32_t>(block * block_elements);
  const auto decoded = warp.each(
      [&](unsigned lane) { return decode_lane<bits>(warp.of(own, lane), first, lane, seed, exponent, sent); });
  const std::uint32_t sum = warp.sum(warp.each([&](unsigned lane) { return warp.of(decoded, lane).check; }));
  const bool near = largest < parts::limit_bits(exponent) && parts::check_of(sum) == check;
  const auto moments = warp.each([&](unsigned lane) { return warp.of(decoded, lane).moments; });
  const BlockOutcome found = near ? outcome_of_moments(warp, moments, exponent) : parts::wide_outcome();
  warp.run([&](unsigned lane) { (near ? warp.of(decoded, lane).differences : Packed<bits>{}).store(out, lane); });
  warp.once([&] { *outcome = found; });
  return true;
}

/// Computes the outcome again from packed differences.
template <int bits, class Warp>
GOSSAMER_ANYWHERE void outcome_block(const Warp& warp, int exponent, const std::uint8_t* differences, bool wide,
                                     BlockOutcome* outcome) {
  const auto moments = warp.each([&](unsigned lane) {
    const Packed<bits> packed = Packed<bits>::load(differences, lane);
    Moments sums;
    for (unsigned n = 0; n < lane_elements; ++n)
      sums.add(packed.get(n));
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
    LaneSums found;
    for (unsigned n = 0; n < lane_terms; ++n) {
      const unsigned element = n * sum_lanes + lane;
      const float apart = y.at(first + element) - sent[element];
      out[element] = apart;
      found.add(apart);
    }
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

/// The place of a block in the ascending list; `count` if it is not in the list.
[[nodiscard]] GOSSAMER_ANYWHERE inline std::uint32_t place_of(std::uint32_t block, const std::uint32_t* blocks,
                                                              std::uint32_t count) {
  std::uint32_t low = 0;
  std::uint32_t high = count;
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
    const auto packed = Packed<codec_bits(codec)>::load(block, lane);
    Four values{};
    for (unsigned n = 0; n < 4; ++n)
      values.at[n] = static_cast<float>(packed.get(4 * half + n));
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

/// Writes an element after all were found finite. One that the client has changed to a value that is not finite stays
/// as it is.
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

[[nodiscard]] GOSSAMER_ANYWHERE inline bool mean_finite(const ClientArrays& client, std::size_t e) {
  return parts::magnitude_of(client.snapshot[e]) < parts::too_large_bits;
}

/// y with the client's progress. `moved` becomes true if there was any.
[[nodiscard]] GOSSAMER_ANYWHERE inline float mean_taken(const ClientArrays& client, std::size_t e, float y,
                                                        bool& moved) {
  const float base = client.base[e];
  const float from = client.base_correction == nullptr ? base : base + client.base_correction[e];
  const float progress = client.snapshot[e] - from;
  moved = moved || parts::magnitude_of(progress) != 0;
  return parts::with_progress(y, client.weight, progress);
}

/// Writes the client's correction. True if it is not zero.
[[nodiscard]] GOSSAMER_ANYWHERE inline bool mean_corrected(const ClientArrays& client, std::size_t e, float y) {
  client.correction[e] = client.replace != 0 ? y : y - client.snapshot[e];
  return client.replace != 0 || parts::magnitude_of(client.correction[e]) != 0;
}

}  // namespace gossamer::gossip::cuda
