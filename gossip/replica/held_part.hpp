// Keeps a partner whose exchanges take long, since it is far away or answers nothing, from holding most of the
// exchanges that a node may have under way. Without that, nearly all of them would soon be with that partner, since
// those with others are over at once.
//
// A neighbour has one (gossip/replica/neighbours.hpp). On the replica's thread; time is an argument.

#pragma once

#include <algorithm>

#include "gossip/smoothed.hpp"
#include "gossip/types.hpp"

namespace gossamer::gossip {

class HeldPart {
 public:
  /// Smoothed time that an exchange holds its place; 0: not known.
  [[nodiscard]] TimeUs usual_us() const { return static_cast<TimeUs>(usual_us_); }
  [[nodiscard]] bool rests(TimeUs now_us) const { return now_us < until_us_; }

  /// An exchange begins, for which the partner will probably have to rest for this time.
  void begin(TimeUs rest_us, TimeUs now_us) { until_us_ = std::max(until_us_, now_us) + rest_us; }
  /// It has ended, and the partner is to rest for this time instead.
  void end(TimeUs expected_us, TimeUs rest_us) { until_us_ += rest_us - expected_us; }
  /// An exchange took this time until it was done or given up. It was not turned down.
  void observe(TimeUs took_us) { usual_us_ = smoothed(usual_us_, static_cast<double>(took_us)); }

 private:
  double usual_us_ = 0;
  TimeUs until_us_ = 0;
};

}  // namespace gossamer::gossip
