// Estimates the least delays of a link, and what stands in the queues on the way there and back.
//
// Acknowledgements tell when their bytes came in. As in LEDBAT (RFC 6817) the two clocks need not agree, since only
// differences to the least delay seen count. The least is taken over the last one to two delay_window_us.
//
// Pure: time is an argument. One owner (peer/links/pacing.hpp), one thread.

#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "gossip/types.hpp"

namespace gossamer::peer {

/// A longer wait of acknowledgements on their way back counts as this long.
inline constexpr TimeUs most_back_us = 100 * us_per_ms;
inline constexpr TimeUs delay_window_us = 5 * us_per_s;

class DelayEstimate {
 public:
  /// True at the beginning of a new window.
  [[nodiscard]] bool turn_window(TimeUs now);
  /// `received_at`: by the other clock; 0: not told.
  void observe(TimeUs sent_at, TimeUs now, TimeUs received_at);
  void observe_round_trip(TimeUs sent_at, TimeUs now) { round_trip_.see(std::max<TimeUs>(now - sent_at, 1)); }

  /// The least round trip; 0: not known.
  [[nodiscard]] TimeUs least_us() const;
  /// True if the two directions can be told apart.
  [[nodiscard]] bool knows_ways() const { return there_.known(); }
  [[nodiscard]] TimeUs queue_there_us() const { return queue_there_us_; }
  /// The time that acknowledgements have waited on their way back, smoothed.
  [[nodiscard]] double queue_back_us() const { return queue_back_us_; }

 private:
  /// The least of what was seen in the window that runs and in the one before.
  class Least {
   public:
    static constexpr TimeUs unknown = std::numeric_limits<TimeUs>::max();
    void see(TimeUs delay) { now_ = std::min(now_, delay); }
    void turn() { before_ = std::exchange(now_, unknown); }
    [[nodiscard]] TimeUs value() const { return std::min(now_, before_); }
    /// Begins a new window after a time in which nothing was seen, and keeps the least that is known.
    void keep() { before_ = std::min(std::exchange(now_, unknown), before_); }
    void forget() { now_ = before_ = unknown; }
    [[nodiscard]] bool known() const { return value() != unknown; }

   private:
    TimeUs now_ = unknown;
    TimeUs before_ = unknown;
  };

  Least round_trip_;
  Least there_;                ///< the least delay there, plus the lead of the other end's clock
  Least back_;                 ///< the least delay back, minus that lead
  TimeUs queue_there_us_ = 0;  ///< the value seen last
  double queue_back_us_ = 0;
  std::int64_t window_ = 0;  ///< the number of the running window
};

}  // namespace gossamer::peer
