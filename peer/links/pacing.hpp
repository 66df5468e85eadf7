// Decides how much of one link's bulk may be under way, and in how large parts it is sent, so that it fills the link
// and does not stand in a queue before it. Such a queue would delay heartbeats and control, which share it.
//
// What counts as under way is what was sent and not acknowledged by the other end. The window is what the link carries
// until an acknowledgement comes back, and a little more:
//
//   window = rate · (least + back + allowance) + constant
//   allowance = max(least / 3, unevenness between least_allowed_us and most_allowed_us)
//
// `rate` is what the link takes (peer/links/rate_estimate.hpp), `least` the least round trip lately, and `back` what
// acknowledgements have waited on their way back (peer/links/delay_estimate.hpp). So `allowance` is what stands before
// the bottleneck on the way there, whatever goes the other way. Without `back`, if both ends send, one end would use up
// the allowance with the queue of its own direction. The other end's acknowledgements wait in that queue, so the other
// end would never fill its own direction. A probe's round trip is longer by the allowances of both directions: 5/3 of
// the least one, or 4 to 20 ms more.
//
// The other end takes bytes from the network when its loop comes to it. If it is away for longer than the allowance,
// the link stands idle. So the allowance is at least the longest pause between acknowledgements lately, within bounds.
//
// Within the window, parts go at `paced_gain` times the rate at most. Otherwise a burst would arrive and be
// acknowledged as a burst, and so cause the next burst; the queue would be too long and empty by turns. Bursts need a
// window larger than the allowance, so parts are not paced where the round trip is below `paced_from_us`.
//
// If the bottleneck becomes faster, the delivery rate rises by the factor by which the window exceeds what was needed.
// The constant lets links that share a bottleneck come to equal shares, since each keeps that much more in the queue,
// whatever its rate. At every multiple of delay_window_us a busy link drains its queue for about a round trip, to see
// the least delay again. Links of one node do so at the same time, as they may share a bottleneck.
//
// If acknowledgements do not tell a time (those of an older node), `back` is 0 and allowance = max(least / 2,
// most_allowed_us).
//
// A sender that has less to send than fits measures itself, not the link: such samples only raise the rate.
//
// Pure: time is an argument. One owner, one thread (the overlay's loop). Until enable(), which says that the other end
// acknowledges, everything may go and nothing is remembered.

#pragma once

#include <deque>

#include "peer/links/delay_estimate.hpp"
#include "peer/links/goodput_estimate.hpp"

namespace gossamer::peer {

/// Bounds of the allowance where a third of the round trip is less. A link of `fast_bytes_per_s` gets the most, because
/// its ends are as busy as the link.
inline constexpr TimeUs least_allowed_us = 2 * us_per_ms;
inline constexpr TimeUs most_allowed_us = 10 * us_per_ms;
inline constexpr double fast_bytes_per_s = 1e9 / 8;
/// Bounds of the window, and its size until something was measured.
inline constexpr std::size_t least_window_bytes = 8 * 1024;
inline constexpr std::size_t first_window_bytes = 64 * 1024;
inline constexpr std::size_t most_window_bytes = std::size_t{32} << 20;
/// The constant that makes shares equal.
inline constexpr std::size_t window_constant_bytes = 4 * 1024;
/// How many parts the window holds, within bounds. A few must be under way for acknowledgements to flow evenly.
inline constexpr std::size_t parts_in_window = 8;
inline constexpr std::size_t least_part_bytes = 4 * 1024;
/// No part takes longer than this on the link, unless it is of the least size.
inline constexpr TimeUs part_us = 2 * us_per_ms;
inline constexpr TimeUs paced_from_us = 2 * us_per_ms;
inline constexpr double paced_gain = 1.25;
/// No part waits for longer than this for the one before.
inline constexpr TimeUs most_paced_us = 100 * us_per_ms;
/// If the timer is late, up to this much time is made up for.
inline constexpr TimeUs paced_credit_us = 2 * us_per_ms;
/// The most parts and messages under way.
inline constexpr std::size_t most_under_way = 1024;
/// The bulk that waits for the window may be what the link carries in this time, within bounds. More would be old when
/// it leaves.
inline constexpr TimeUs waiting_us = 1 * us_per_s;
inline constexpr std::size_t least_waiting_bytes = std::size_t{4} << 20;

class Pacing {
 public:
  /// The other end acknowledges from now on.
  void enable() { enabled_ = true; }
  [[nodiscard]] bool enabled() const { return enabled_; }

  /// True if another part fits the window.
  [[nodiscard]] bool open() const;
  /// The time from which the next part may go.
  [[nodiscard]] TimeUs opens_at() const { return next_at_; }
  /// So many bytes of what is under way have come to the other end, which gives them out once it has what was lost
  /// before them. They are no longer in the network.
  void held_behind_loss(std::uint64_t bytes, TimeUs now);
  /// A part was sent; `more_waits`: there is another behind it.
  void sent(std::size_t bytes, bool more_waits, TimeUs now);
  /// Sending pauses for another reason than the window, so what is measured next is not the link's rate.
  void held_back() { limited_until_ = sent_; }
  /// The other end has received `total_bytes` since the link came up, the last of them at `received_at` by its own
  /// clock; 0: it does not say. False if that cannot be.
  [[nodiscard]] bool acknowledged(std::uint64_t total_bytes, TimeUs now, TimeUs received_at = 0);
  /// A heartbeat came back that was sent at `sent`.
  void round_trip(TimeUs sent, TimeUs now);
  /// True once in each drain: a heartbeat should be sent now, to see the least delay while the queue is empty.
  [[nodiscard]] bool take_ping_wish(TimeUs now);

  [[nodiscard]] std::size_t window_bytes() const;
  [[nodiscard]] std::size_t part_bytes() const;
  [[nodiscard]] std::size_t under_way_bytes() const { return static_cast<std::size_t>(sent_ - delivered_); }
  /// The bytes that may wait, at most `most`.
  [[nodiscard]] std::size_t waiting_bytes(std::size_t most) const;
  /// Bytes per second that the link takes; 0: nothing was sent yet.
  [[nodiscard]] double rate() const { return rate_.value(); }
  /// True if rate() was seen with more waiting, so that it is the link's and not the sender's.
  [[nodiscard]] bool measured() const { return rate_.measured(); }
  /// What the link takes while more is waiting, in bytes a second; 0: not seen lately (goodput_estimate.hpp).
  [[nodiscard]] double goodput(TimeUs now) const { return goodput_.value(now); }
  /// The least round trip lately; 0: not known.
  [[nodiscard]] TimeUs least_delay_us() const { return delay_.least_us(); }
  /// How much bulk may stand before the bottleneck, as the time that the link needs for it.
  [[nodiscard]] TimeUs allowance_us() const;

 private:
  void turn_delay_window(TimeUs now);
  void end_drain(TimeUs now);

  bool enabled_ = false;
  bool filling_ = true;  ///< the rate is still being looked for
  std::uint64_t sent_ = 0;
  std::uint64_t delivered_ = 0;
  TimeUs delivered_at_ = 0;
  TimeUs received_at_ = 0;  ///< delivered_at_ by the other clock; 0: not known
  TimeUs first_sent_at_ = 0;
  TimeUs next_at_ = 0;               ///< when the next part may go
  std::uint64_t limited_until_ = 0;  ///< parts sent until more bytes than this are delivered count as limited
  std::uint64_t held_ = 0;           ///< behind losses, as of the last look
  std::uint64_t held_then_ = 0;      ///< at the last acknowledgement
  TimeUs held_at_ = 0;               ///< when something was last held
  std::deque<SentPart> parts_;       ///< at most most_under_way

  RateEstimate rate_;
  DelayEstimate delay_;
  GoodputEstimate goodput_;
  bool draining_ = false;
  TimeUs draining_since_ = 0;
  TimeUs drained_at_ = 0;
  TimeUs pinged_at_ = 0;  ///< 0: not yet in this drain
};

}  // namespace gossamer::peer
