// The random source of every decision: a small generator. main (or a simulation) chooses its seed, so that one seed
// replays everything. It must not be used for secrets. One owner, one thread.

#pragma once

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

 private:
  std::uint64_t state_;
};

}  // namespace gossamer::gossip
