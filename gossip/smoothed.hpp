// Smoothed averages: each new value counts for a quarter, so that about the last seven values matter.
//
// Pure; any thread.

#pragma once

namespace gossamer::gossip {

/// The average with `value` taken in. If `average` is 0 (nothing measured yet), the result is `value`.
[[nodiscard]] constexpr double smoothed(double average, double value) {
  constexpr double weight = 0.25;
  return average == 0 ? value : average + weight * (value - average);
}

}  // namespace gossamer::gossip
