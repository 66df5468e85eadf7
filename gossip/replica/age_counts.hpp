// A histogram of the ages of exchanged values. An age is counted in publication intervals of the replica itself, so
// that replicas of any speed can be compared. From 4 and 16 intervals on, values weigh less (age_shift()).
//
// The histogram is only shown to people; no decision uses it.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

/// Inclusive upper bounds. Ages above the last bound have their own count at the end.
inline constexpr std::array<double, 6> age_bounds = {1, 2, 4, 8, 16, 64};

struct AgeCounts {
  std::array<std::uint64_t, age_bounds.size() + 1> counts = {};  ///< one count per bound, and one for larger ages
  double sum = 0;                                                ///< sum of all ages, in publication intervals

  /// A replica that has published only once has no interval yet: its age counts as 0.
  void add(const Age& age) {
    const double intervals = age.cadence == 0 ? 0 : static_cast<double>(age.samples) / static_cast<double>(age.cadence);
    const auto* const bound = std::lower_bound(age_bounds.begin(), age_bounds.end(), intervals);
    ++counts[static_cast<std::size_t>(bound - age_bounds.begin())];
    sum += intervals;
  }
};

}  // namespace gossamer::gossip
