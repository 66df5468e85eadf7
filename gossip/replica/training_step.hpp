// The time and the samples that a client's training steps take.
//
// Pure; one owner.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

struct TrainingStep {
  TimeUs us = 0;       ///< the time between two steps; 0: not known
  double samples = 0;  ///< of those steps that have any, on average; 0: there was none

  /// `steps` steps, which had samples, were trained on so many of them in all. About the last 32 steps count.
  void trained(double all_samples, double steps) {
    constexpr double remembered = 32;
    const double share = samples == 0 ? 1 : std::min(1.0, steps / remembered);
    samples += share * (all_samples / steps - samples);
  }
};

}  // namespace gossamer::gossip
