// Notices that a model grows without bound, within seconds: what becomes NaN a minute later has by then been averaged
// into every other replica. The watch (daemon/report/watch.hpp) looks at it too, but over a minute.
//
// Owned by JobTrouble. Time is an argument.

#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "gossip/types.hpp"

namespace gossamer::daemon {

class Growth {
 public:
  /// `size`: the root mean square of the model's numbers; 0: not known.
  void look(TimeUs now_us, double size) {
    if (!(size > 0)) return;
    if (now_us - window_us_ >= window) {
      before_ = std::exchange(least_, std::numeric_limits<double>::infinity());
      window_us_ = now_us;
    }
    least_ = std::min(least_, size);
    size_ = size;
  }
  /// How many times as large as half a minute to a minute ago, if that is too much. Numbers below 1 are small: a model
  /// may begin with zeros.
  [[nodiscard]] std::optional<double> without_bound() const {
    const double before = std::max(std::min(before_, least_), 1.0);
    return size_ > most * before ? std::optional(size_ / before) : std::nullopt;
  }

 private:
  static constexpr TimeUs window = 30 * us_per_s;
  static constexpr double most = 1000;

  double size_ = 0;
  double least_ = std::numeric_limits<double>::infinity();   // since window_us_
  double before_ = std::numeric_limits<double>::infinity();  // in the window before
  TimeUs window_us_ = 0;
};

}  // namespace gossamer::daemon
