// Notices within seconds that a model grows without bound. A model that becomes NaN a minute later has by then been
// averaged into every other replica. The watch (daemon/report/watch.hpp) notices such growth too, but over a minute.
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
  /// How many times as large the model is as its least size in the last 30 to 60 s, if that is too much. A least size
  /// below 1 counts as 1, since a model may begin with zeros.
  [[nodiscard]] std::optional<double> without_bound() const {
    const double before = std::max(std::min(before_, least_), 1.0);
    return size_ > most * before ? std::optional(size_ / before) : std::nullopt;
  }

 private:
  static constexpr TimeUs window = 30 * us_per_s;
  static constexpr double most = 1000;

  double size_ = 0;
  double least_ = std::numeric_limits<double>::infinity();   // the least size since window_us_
  double before_ = std::numeric_limits<double>::infinity();  // the least size in the window before
  TimeUs window_us_ = 0;
};

}  // namespace gossamer::daemon
