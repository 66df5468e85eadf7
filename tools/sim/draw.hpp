// Distributions over gossip::Random. The standard library's give different numbers with another library version; a seed
// that is printed tonight must replay next year. One owner, one thread.

#pragma once

#include <cmath>
#include <numbers>
#include <span>
#include <utility>

#include "gossip/random.hpp"

namespace gossamer::sim {

/// True with probability p.
inline bool chance(gossip::Random& random, double p) {
  return random.uniform() < p;
}

/// Uniform in [low, high].
inline TimeUs between(gossip::Random& random, TimeUs low, TimeUs high) {
  return low + static_cast<TimeUs>(random.below(static_cast<std::uint64_t>(high - low) + 1));
}

inline double uniform(gossip::Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

/// Exponential with the given mean.
inline double exponential(gossip::Random& random, double mean) {
  return -mean * std::log1p(-random.uniform());
}

/// Standard normal (Box & Muller 1958); the second of the pair is not used.
inline double normal(gossip::Random& random) {
  const double radius = std::sqrt(-2.0 * std::log1p(-random.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * random.uniform());
}

/// Every order equally likely (Fisher & Yates).
template <class T>
void shuffle(gossip::Random& random, std::span<T> items) {
  for (std::size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[random.below(i)]);
}

}  // namespace gossamer::sim
