// A token bucket lets so many pass at once, then so many a second. Time comes in as an argument. One owner.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::peer {

class Throttle {
 public:
  Throttle(double burst, double per_s) : burst_(burst), per_s_(per_s), tokens_(burst) {}

  /// True if this one may pass.
  [[nodiscard]] bool take(TimeUs now) {
    if (started_) tokens_ = std::min(burst_, tokens_ + per_s_ * static_cast<double>(now - last_) / us_per_s);
    started_ = true;
    last_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  double burst_;
  double per_s_;
  double tokens_;
  TimeUs last_ = 0;
  bool started_ = false;
};

}  // namespace gossamer::peer
