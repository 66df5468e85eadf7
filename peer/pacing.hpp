// How much of one link's bulk may be under way, and in how large parts it is sent, so that it fills the link and does
// not stand in a queue before it: that queue would delay heartbeats and control, which share it.
//
// What counts as under way is what was sent and not acknowledged by the other end. The window is what the link carries
// in its least round trip and a little more:
//
//   window = rate · (least + allowance) + constant      allowance = max(least / 2, allowed_delay_us)
//
// `rate` is the largest delivery rate seen in the last one to two rate_window_us, `least` the least delay seen in the
// last one to two delay_window_us (Cardwell et al., BBR, ACM Queue 14(5), 2016; the delivery rate is that of
// draft-cheng-iccrg-delivery-rate-estimation). There is no pacing by time: acknowledgements let the next part go. At
// the bottleneck stands rate · allowance, so a probe's round trip is about 1.5 times the least one, or 10 ms more. A
// larger bottleneck shows as a higher delivery rate, by the factor that the window is above what was needed; the
// constant lets links that share a bottleneck come to equal shares (each keeps that much more in the queue, whatever
// its rate). At every multiple of delay_window_us a busy link drains its queue for about a round trip, to see the
// least delay again; links of one node do so at the same time, as they may share what they wait for.
//
// A sender that has less to send than fits measures itself, not the link: such samples only raise the rate.
//
// Pure: time is an argument. One owner, one thread (the overlay's loop). Until enable(), which says that the other end
// acknowledges, everything may go and nothing is remembered.

#pragma once

#include <deque>

#include "gossip/types.hpp"

namespace gossamer::peer {

inline constexpr TimeUs allowed_delay_us = 10 * us_per_ms;
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
/// Parts and messages under way.
inline constexpr std::size_t most_under_way = 1024;
/// What may wait for the window: what the link carries in this time, within bounds. More would be old when it leaves.
inline constexpr TimeUs waiting_us = 1 * us_per_s;
inline constexpr std::size_t least_waiting_bytes = std::size_t{4} << 20;
/// Goodput is averaged over this long, and forgotten if the link was not loaded for so long.
inline constexpr TimeUs goodput_span_us = 200 * us_per_ms;
inline constexpr TimeUs goodput_lifetime_us = 60 * us_per_s;

class Pacing {
 public:
  /// The other end acknowledges from now on.
  void enable() { enabled_ = true; }
  [[nodiscard]] bool enabled() const { return enabled_; }

  /// Another part may go.
  [[nodiscard]] bool open() const;
  /// One did; `more_waits`: there is another behind it.
  void sent(std::size_t bytes, bool more_waits, TimeUs now);
  /// Nothing more goes for a while, for another reason than the window: what is measured next is not the link.
  void held_back();
  /// The other end has had `total_bytes` of what was sent, since the link came up. False if that cannot be.
  [[nodiscard]] bool acknowledged(std::uint64_t total_bytes, TimeUs now);
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
  /// The mean over goodput_span_us and more while more was waiting, if that was within goodput_lifetime_us; else 0.
  /// What people are told: rate() is the largest, and may have caught a burst.
  [[nodiscard]] double goodput(TimeUs now) const;
  /// The least delay lately, from sending to acknowledgement; 0: not known.
  [[nodiscard]] TimeUs least_delay_us() const;

 private:
  struct Part {
    std::uint64_t end = 0;  ///< of all bytes sent
    TimeUs sent_at = 0;
    std::uint64_t delivered = 0;  ///< when it was sent
    TimeUs delivered_at = 0;
    TimeUs first_sent_at = 0;  ///< of what was delivered last then
    bool limited = false;      ///< by what there was to send
  };

  void observe_rate(const Part& part, TimeUs now);
  void observe_goodput(bool limited, TimeUs now);
  void observe_delay(TimeUs delay, TimeUs now);
  void turn_delay_window(TimeUs now);
  void drain(TimeUs now);
  [[nodiscard]] double allowed_us() const;

  bool enabled_ = false;
  std::uint64_t sent_ = 0;
  std::uint64_t delivered_ = 0;
  TimeUs delivered_at_ = 0;
  TimeUs first_sent_at_ = 0;
  std::uint64_t limited_until_ = 0;  ///< parts sent before more than this was delivered are limited
  std::deque<Part> parts_;           ///< at most most_under_way

  double rate_now_ = 0;  ///< largest in the window that runs, and in the one before
  double rate_before_ = 0;
  TimeUs rate_window_since_ = 0;
  TimeUs measured_at_ = 0;
  bool measured_ = false;
  double goodput_ = 0;  ///< smoothed
  TimeUs goodput_at_ = 0;
  TimeUs loaded_since_ = 0;  ///< 0: not loaded
  std::uint64_t delivered_then_ = 0;
  bool filling_ = true;  ///< the rate is still being looked for

  TimeUs delay_now_ = 0;  ///< least in the window that runs, and in the one before; 0: none
  TimeUs delay_before_ = 0;
  std::int64_t delay_window_ = 0;  ///< its number
  bool draining_ = false;
  TimeUs draining_since_ = 0;
  TimeUs pinged_at_ = 0;  ///< 0: not yet
};

}  // namespace gossamer::peer
