// The random source of every decision: a small generator. main (or a simulation) chooses its seed, so that one seed
// replays everything. It must not be used for secrets. One owner, one thread.

#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", fig. 14).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// 64 uniform bits.
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
  }
  /// Uniform in [0, bound); bound > 0. The bias is under bound / 2^64.
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((__extension__ static_cast<unsigned __int128>(next())) * bound >> 64);
  }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Every order is equally likely (Fisher & Yates).
  template <class Items>
  void shuffle(Items& items) {
    for (std::size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[below(i)]);
  }
  /// Moves `count` of the items to the front, or all if there are fewer, and returns them. Chance decides which ones
  /// and in what order.
  template <class Items>
  auto draw(Items& items, std::size_t count) {
    const std::span all(items);
    for (std::size_t i = 0; i < std::min(count, all.size()); ++i)
      std::swap(all[i], all[i + below(all.size() - i)]);
    return all.first(std::min(count, all.size()));
  }

 private:
  std::uint64_t state_;
};

}  // namespace gossamer::gossip
