// Estimates how many bytes a second a link carries while more is waiting. People see the estimate, and the cadence
// keeps to a share of it.
//
// The rate that sizes the window (RateEstimate) is the largest one seen, and may be that of a burst. Goodput is a mean
// over goodput_span_us of the time in which the link is loaded; a few short loads tell as much as a long one. The
// median of the last few means is given, and all are forgotten if the link was not loaded for goodput_lifetime_us.
//
// Pure: time is an argument. One owner (peer/links/pacing.hpp), one thread.

#pragma once

#include <deque>

#include "peer/links/rate_estimate.hpp"

namespace gossamer::peer {

inline constexpr TimeUs goodput_span_us = 200 * us_per_ms;
/// If the link is loaded only for moments, for example because it has become much faster, a mean is made after this
/// time, provided that goodput_windows windows of bytes have passed.
inline constexpr TimeUs goodput_within_us = 500 * us_per_ms;
inline constexpr std::size_t goodput_windows = 4;
inline constexpr std::size_t goodput_least_bytes = 64 * 1024;
inline constexpr std::size_t goodput_means = 5;
inline constexpr TimeUs goodput_lifetime_us = 60 * us_per_s;

class GoodputEstimate {
 public:
  /// `loaded`: the link neither searches for its rate nor drains its queue.
  void observe(const Progress& progress, bool loaded, std::size_t window_bytes);
  /// Nothing was under way for a while.
  void pause() { loaded_at_ = 0; }
  /// Bytes a second; 0: not seen within goodput_lifetime_us.
  [[nodiscard]] double value(TimeUs now) const;

 private:
  struct MeanRate {
    TimeUs begun_at = 0;
    TimeUs took_us = 0;
    std::uint64_t bytes = 0;
  };

  std::deque<double> means_;  ///< the latest last; at most goodput_means
  TimeUs seen_at_ = 0;
  TimeUs loaded_at_ = 0;  ///< when the last bytes arrived on the loaded link; 0: it is not loaded
  std::uint64_t delivered_then_ = 0;
  MeanRate waiting_mean_;  ///< made while more is waiting
  MeanRate limited_mean_;  ///< made while nothing waits here; it may be a burst, and can only raise the estimate
};

}  // namespace gossamer::peer
