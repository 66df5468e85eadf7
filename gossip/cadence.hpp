// How often a fragment is exchanged: as often as asked for, unless gossip then takes more than its share of the
// training's time or of the network.
//
// Both shares fall as 1 / period, so the controller needs no model of what an exchange costs: it compares what was
// measured with what is allowed and scales the period by the larger excess. The period rules over the exchanges that
// the node begins, and those may take half of what is allowed: as many are begun by others, where all do so. If what
// others begin counted against a node's own, one node would come to begin all of them and the rest none. One owner, one
// thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

class Cadence {
 public:
  /// Longest period: a fragment is exchanged at least this often, whatever it costs.
  static constexpr TimeUs most_us = 600 * us_per_s;
  /// Most that one adjustment lengthens the period by: a large model that begins at its shortest period should not take
  /// much more than its share for long.
  static constexpr double longer_most = 8.0;
  /// And shortens it by: one quiet moment says little.
  static constexpr double shorter_most = 2.0;
  /// Within this of the allowance nothing is changed.
  static constexpr double slack = 0.1;

  /// Of the allowance, for the exchanges that a node begins.
  static constexpr double own_share = 0.5;

  explicit Cadence(TimeUs least_us) : least_us_(least_us), period_us_(least_us) {}

  void set_least(TimeUs least_us) {
    least_us_ = least_us;
    period_us_ = std::clamp(period_us_, least_us, std::max(least_us, most_us));
  }

  /// `excess`: what exchanges that the node began have taken since the last adjustment over what they may take, of the
  /// tighter of its shares.
  void adjust(double excess) {
    if (excess > 1 - slack && excess < 1 + slack / 2) return;
    // Aims a little below the allowance, so that it is kept and not straddled.
    const double scale = std::clamp(excess / (1 - slack / 2), 1 / shorter_most, longer_most);
    // A period of nothing cannot be scaled.
    const auto base_us = static_cast<double>(std::max<TimeUs>(period_us_, us_per_ms));
    period_us_ = std::clamp(static_cast<TimeUs>(base_us * scale), least_us_, std::max(least_us_, most_us));
    if (period_us_ <= us_per_ms && scale < 1) period_us_ = least_us_;
  }

  [[nodiscard]] TimeUs period_us() const { return period_us_; }

 private:
  TimeUs least_us_;
  TimeUs period_us_;
};

}  // namespace gossamer::gossip
