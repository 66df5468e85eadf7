// A token bucket lets so many pass at once, then so many a second. Time comes in as an argument. One owner.

#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>

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

/// Keeps one throttle for each of many askers, and remembers the `most` askers that came last.
class ThrottleForEach {
 public:
  ThrottleForEach(double burst, double per_s, std::size_t most) : burst_(burst), per_s_(per_s), most_(most) {}

  [[nodiscard]] bool take(const std::string& who, TimeUs now) {
    const auto [of, is_new] = each_.try_emplace(who, Asked{Throttle(burst_, per_s_), 0});
    of->second.last = now;
    const bool may_pass = of->second.throttle.take(now);
    if (is_new && each_.size() > most_)
      each_.erase(std::ranges::min_element(each_, {}, [](const auto& item) { return item.second.last; }));
    return may_pass;
  }

 private:
  struct Asked {
    Throttle throttle;
    TimeUs last = 0;
  };

  double burst_;
  double per_s_;
  std::size_t most_;
  std::unordered_map<std::string, Asked> each_;
};

}  // namespace gossamer::peer
