// How much of one link's bulk may be under way, and in how large parts it is sent, so that it fills the link and does
// not stand in a queue before it: that queue would delay heartbeats and control, which share it.
//
// What counts as under way is what was sent and not acknowledged by the other end. The window is what the link carries
// until an acknowledgement comes back, and a little more:
//
//   window = rate · (least + back + allowance) + constant
//   allowance = max(least / 3, unevenness between least_allowed_us and most_allowed_us)
//
// `rate` is the largest delivery rate seen in the last one to two rate_window_us, `least` the least round trip of the
// last one to two delay_window_us (Cardwell et al., BBR, ACM Queue 14(5), 2016; the delivery rate while it is being
// looked for is that of draft-cheng-iccrg-delivery-rate-estimation, later the mean over rate_span_us). `back` is what
// acknowledgements have waited on their way back. It is known because they tell when their bytes came in: as in LEDBAT
// (RFC 6817), the clocks need not agree, since only differences to the least seen count. So `allowance` is what stands
// before the bottleneck on the way there, whatever goes the other way: without that, of two senders that face each
// other one takes the whole allowance for the queue of its own direction, and the other never fills its own. A probe's
// round trip is longer by the allowances of both directions: 5/3 of the least one, or 4 to 20 ms more.
//
// The other end takes bytes from the network when its loop comes to it. If it is away for longer than the allowance,
// the link stands idle; so the allowance is at least the longest pause between acknowledgements lately, within bounds.
//
// Within the window, parts go at `paced_gain` times the rate at most: what leaves in bursts arrives in bursts, is
// acknowledged in bursts and leaves in bursts for ever after, so that the queue is too long and empty by turns. That
// takes a window that is larger than the allowance: below `paced_from_us` of round trip parts go as they can.
//
// A larger bottleneck shows as a higher delivery rate, by the factor that the window is above what was needed; the
// constant lets links that share a bottleneck come to equal shares (each keeps that much more in the queue, whatever
// its rate). At every multiple of delay_window_us a busy link drains its queue for about a round trip, to see the least
// delay again; links of one node do so at the same time, as they may share what they wait for.
//
// Acknowledgements that do not tell a time (an older node's) count as without a way back, with
// allowance = max(least / 2, most_allowed_us).
//
// A sender that has less to send than fits measures itself, not the link: such samples only raise the rate.
//
// Pure: time is an argument. One owner, one thread (the overlay's loop). Until enable(), which says that the other end
// acknowledges, everything may go and nothing is remembered.

#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "gossip/types.hpp"

namespace gossamer::peer {

/// Bounds of the allowance where a third of the round trip is less. A link of `fast_bytes_per_s` has the most: its ends
/// are as busy as it is.
inline constexpr TimeUs least_allowed_us = 2 * us_per_ms;
inline constexpr TimeUs most_allowed_us = 10 * us_per_ms;
inline constexpr double fast_bytes_per_s = 1e9 / 8;
/// What acknowledgements wait on their way back is believed up to this.
inline constexpr TimeUs most_back_us = 100 * us_per_ms;
inline constexpr TimeUs rate_span_us = 150 * us_per_ms;
inline constexpr TimeUs rate_window_us = 1 * us_per_s;
inline constexpr TimeUs delay_window_us = 5 * us_per_s;
/// Bounds of the window, and what it is until something was measured.
inline constexpr std::size_t least_window_bytes = 8 * 1024;
inline constexpr std::size_t first_window_bytes = 64 * 1024;
inline constexpr std::size_t most_window_bytes = std::size_t{32} << 20;
/// The constant that makes shares equal.
inline constexpr std::size_t window_constant_bytes = 4 * 1024;
/// A part is this share of the window, within bounds: a few must be under way for acknowledgements to flow evenly.
inline constexpr std::size_t parts_in_window = 8;
inline constexpr std::size_t least_part_bytes = 4 * 1024;
/// No part takes longer than this on the link, unless it is of the least size.
inline constexpr TimeUs part_us = 2 * us_per_ms;
inline constexpr TimeUs paced_from_us = 2 * us_per_ms;
inline constexpr double paced_gain = 1.25;
/// No part waits for longer than this for the one before.
inline constexpr TimeUs most_paced_us = 100 * us_per_ms;
/// A timer that is late by this is made up for.
inline constexpr TimeUs paced_credit_us = 2 * us_per_ms;
/// Parts and messages under way.
inline constexpr std::size_t most_under_way = 1024;
/// What may wait for the window: what the link carries in this time, within bounds. More would be old when it leaves.
inline constexpr TimeUs waiting_us = 1 * us_per_s;
inline constexpr std::size_t least_waiting_bytes = std::size_t{4} << 20;
/// Goodput is averaged over this long, of the time in which the link is loaded: a mean. Of the last few the median is
/// given, and all are forgotten if the link was not loaded for so long.
inline constexpr TimeUs goodput_span_us = 200 * us_per_ms;
/// Where the link is loaded for moments only, as after it has become much faster, a mean is made within this time of
/// what there was, if that is a few windows.
inline constexpr TimeUs goodput_within_us = 500 * us_per_ms;
inline constexpr std::size_t goodput_windows = 4;
inline constexpr std::size_t goodput_means = 5;
inline constexpr TimeUs goodput_lifetime_us = 60 * us_per_s;

class Pacing {
 public:
  /// The other end acknowledges from now on.
  void enable() { enabled_ = true; }
  [[nodiscard]] bool enabled() const { return enabled_; }

  /// Another part fits the window.
  [[nodiscard]] bool open() const;
  /// When it may go; in the past: now.
  [[nodiscard]] TimeUs opens_at() const { return next_at_; }
  /// One did; `more_waits`: there is another behind it.
  void sent(std::size_t bytes, bool more_waits, TimeUs now);
  /// Nothing more goes for a while, for another reason than the window: what is measured next is not the link.
  void held_back();
  /// The other end has had `total_bytes` of what was sent, since the link came up: the last of it at `received_at` by
  /// its own clock; 0: it does not say. False if that cannot be.
  [[nodiscard]] bool acknowledged(std::uint64_t total_bytes, TimeUs now, TimeUs received_at = 0);
  /// A heartbeat came back that was sent at `sent`.
  void round_trip(TimeUs sent, TimeUs now);
  /// A heartbeat should be sent now, to see the least delay while the queue is drained. True once each time.
  [[nodiscard]] bool take_ping_wish(TimeUs now);

  [[nodiscard]] std::size_t window_bytes() const;
  [[nodiscard]] std::size_t part_bytes() const;
  [[nodiscard]] std::size_t under_way_bytes() const { return static_cast<std::size_t>(sent_ - delivered_); }
  /// What may wait at most; `most` bounds it.
  [[nodiscard]] std::size_t waiting_bytes(std::size_t most) const;
  /// Bytes per second that the link takes; 0: nothing was sent yet.
  [[nodiscard]] double rate() const;
  /// rate() was seen with more waiting, so it is the link's and not only what there was to send.
  [[nodiscard]] bool measured() const { return measured_; }
  /// What the link takes while more is waiting, if that was within goodput_lifetime_us; else 0. What people are told,
  /// and what the cadence keeps to a share of: rate() is the largest, and may have caught a burst. A few short loads
  /// tell as much as a long one. Not measured while the rate is being looked for, when the round trip decides how much
  /// goes, nor while the queue drains.
  [[nodiscard]] double goodput(TimeUs now) const;
  /// The least round trip lately; 0: not known.
  [[nodiscard]] TimeUs least_delay_us() const;
  /// What may stand before the bottleneck.
  [[nodiscard]] TimeUs allowance_us() const;

 private:
  /// The least of what was seen in the delay window that runs and in the one before.
  class Least {
   public:
    static constexpr TimeUs unknown = std::numeric_limits<TimeUs>::max();
    void see(TimeUs delay) { now_ = std::min(now_, delay); }
    void turn() { before_ = std::exchange(now_, unknown); }
    [[nodiscard]] TimeUs value() const { return std::min(now_, before_); }
    /// A new window after a time in which nothing was seen: what was known stays known.
    void keep() { before_ = std::min(std::exchange(now_, unknown), before_); }
    void forget() { now_ = before_ = unknown; }
    [[nodiscard]] bool known() const { return value() != unknown; }

   private:
    TimeUs now_ = unknown;
    TimeUs before_ = unknown;
  };

  struct Part {
    std::uint64_t end = 0;  ///< of all bytes sent
    TimeUs sent_at = 0;
    std::uint64_t delivered = 0;  ///< when it was sent
    TimeUs delivered_at = 0;
    TimeUs received_at = 0;    ///< of what was delivered last then, by the other clock; 0: not known
    TimeUs first_sent_at = 0;  ///< of what was delivered last then
    bool limited = false;      ///< by what there was to send
  };

  struct Mean {
    TimeUs begun_at = 0;
    TimeUs took_us = 0;
    std::uint64_t bytes = 0;
  };

  void observe_rate(const Part& part, std::uint64_t bytes, TimeUs now, TimeUs received_at);
  void observe_mean_rate(const Part& part, std::uint64_t bytes, TimeUs now, TimeUs received_at);
  void turn_rate_window(TimeUs now);
  void observe_pause(const Part& part, std::uint64_t bytes, TimeUs received_at);
  void observe_goodput(bool limited, TimeUs now, TimeUs received_at);
  void observe_delays(const Part& part, TimeUs now, TimeUs received_at);
  void turn_delay_window(TimeUs now);
  void end_drain(TimeUs now);

  bool enabled_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t delivered_ = 0;
  TimeUs delivered_at_ = 0;
  TimeUs next_at_ = 0;      ///< of sending
  TimeUs received_at_ = 0;  ///< the same by the other clock; 0: not known
  TimeUs first_sent_at_ = 0;
  std::uint64_t limited_until_ = 0;  ///< parts sent before more than this was delivered are limited
  std::deque<Part> parts_;           ///< at most most_under_way

  double rate_now_ = 0;  ///< largest in the window that runs, and in the one before
  double rate_before_ = 0;
  TimeUs rate_window_since_ = 0;
  TimeUs measured_at_ = 0;
  bool measured_ = false;
  TimeUs span_at_ = 0;  ///< when the last bytes came that count for the mean rate, by the other clock if told; 0: none
  TimeUs span_us_ = 0;  ///< how long they took to come, all together
  double span_bytes_ = 0;
  std::deque<double> goodputs_;  ///< means, the latest last; at most goodput_means
  TimeUs goodput_at_ = 0;
  TimeUs loaded_at_ = 0;  ///< when the loaded link last delivered, by the other clock if told; 0: it is not loaded
  std::uint64_t delivered_then_ = 0;
  Mean loaded_mean_;     ///< while more is waiting
  Mean limited_mean_;    ///< while it is not: it may be a burst that waits before the bottleneck, and can only raise
  bool filling_ = true;  ///< the rate is still being looked for

  Least round_trip_;
  Least there_;  ///< by both clocks: true but for a constant
  Least back_;   ///< but for its opposite
  double back_queue_us_ = 0;
  TimeUs queue_there_us_ = 0;      ///< when seen last
  std::int64_t delay_window_ = 0;  ///< its number
  bool draining_ = false;
  TimeUs draining_since_ = 0;
  TimeUs drained_at_ = 0;
  TimeUs pinged_at_ = 0;    ///< 0: not yet
  TimeUs pause_since_ = 0;  ///< the last acknowledged bytes that may count for a pause, by the other clock; 0: none
  TimeUs pause_now_ = 0;    ///< longest in the rate window that runs, and in the one before
  TimeUs pause_before_ = 0;
};

}  // namespace gossamer::peer
