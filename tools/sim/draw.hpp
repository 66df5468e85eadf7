// Distributions over gossip::Random. Those of the standard library differ between its versions, and a seed that is
// printed today must replay in a year. One owner, one thread.

#pragma once

#include <cmath>
#include <numbers>

#include "gossip/random.hpp"

namespace gossamer::sim {

/// True with probability p.
inline bool chance(gossip::Random& random, double p) {
  return random.uniform() < p;
}

/// A uniform draw from [low, high].
inline TimeUs between(gossip::Random& random, TimeUs low, TimeUs high) {
  return low + static_cast<TimeUs>(random.below(static_cast<std::uint64_t>(high - low) + 1));
}

inline double uniform(gossip::Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

/// An exponential draw with this mean.
inline double exponential(gossip::Random& random, double mean) {
  return -mean * std::log1p(-random.uniform());
}

/// A standard normal draw (Box & Muller 1958); the second one of the pair is not used.
inline double normal(gossip::Random& random) {
  const double radius = std::sqrt(-2.0 * std::log1p(-random.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * random.uniform());
}

}  // namespace gossamer::sim
