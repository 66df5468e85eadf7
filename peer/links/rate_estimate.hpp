// Estimates how many bytes a second a link takes, from the acknowledgements of what was sent on it.
//
// The estimate is the largest delivery rate seen in the last one to two rate_window_us (Cardwell et al., BBR, ACM Queue
// 14(5), 2016). While the rate is being looked for, a sample is that of draft-cheng-iccrg-delivery-rate-estimation;
// later it is the mean over rate_span_us of the time in which there was more to send than fits. The longest pause
// between acknowledgements is kept for the same windows.
//
// Pure: time is an argument. One owner (peer/links/pacing.hpp), one thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::peer {

inline constexpr TimeUs rate_span_us = 150 * us_per_ms;
/// After a longer pause, what was held up arrives within this time.
inline constexpr TimeUs rate_settling_us = 10 * us_per_ms;
inline constexpr TimeUs rate_window_us = 1 * us_per_s;

/// A part of bulk that was sent, and the state of the link then.
struct SentPart {
  std::uint64_t end = 0;  ///< all bytes sent on the link up to the end of this part
  TimeUs sent_at = 0;
  std::uint64_t delivered = 0;  ///< all bytes that were acknowledged then
  TimeUs delivered_at = 0;
  TimeUs received_at = 0;    ///< when the last acknowledged bytes came in, by the other clock; 0: not known
  TimeUs first_sent_at = 0;  ///< when the last acknowledged bytes were sent
  bool limited = false;      ///< no more was waiting, so it tells of the sender and not of the link
};

/// The news of one acknowledgement.
struct Progress {
  SentPart last{};              ///< the last part that it covers
  std::uint64_t bytes = 0;      ///< acknowledged by it
  std::uint64_t delivered = 0;  ///< acknowledged altogether
  std::int64_t held_more = 0;   ///< how much more is held behind losses than at the acknowledgement before
  TimeUs now = 0;
  TimeUs received_at = 0;  ///< when the bytes came in, by the other clock; 0: not told

  /// The other clock is taken if it is told, since acknowledgements may have waited on their way and come all at once.
  [[nodiscard]] TimeUs arrived_at() const { return received_at != 0 ? received_at : now; }
};

class RateEstimate {
 public:
  /// `filling`: the rate is still being looked for, with this window.
  void observe(const Progress& progress, bool filling, std::size_t window_bytes);
  /// `counts`: the link was busy, so the time that the acknowledged bytes took beyond their time on the link is a
  /// pause.
  void observe_pause(const Progress& progress, bool counts);
  /// Nothing was under way for a while.
  void pause() { span_at_ = pause_since_ = 0; }

  /// Bytes a second; 0: nothing was sent yet.
  [[nodiscard]] double value() const { return std::max(now_, before_); }
  /// The rate was seen while more was waiting, so that it is the link's and not the sender's.
  [[nodiscard]] bool measured() const { return measured_at_ != 0; }
  [[nodiscard]] bool measured_lately(TimeUs now) const { return measured() && now - measured_at_ < rate_window_us; }
  [[nodiscard]] TimeUs longest_pause_us() const { return std::max(pause_now_, pause_before_); }

 private:
  void observe_mean(const Progress& progress);
  void turn_window(TimeUs now);

  double now_ = 0;  ///< largest in the window that runs, and in the one before
  double before_ = 0;
  TimeUs window_since_ = 0;
  TimeUs measured_at_ = 0;  ///< 0: never
  TimeUs span_at_ = 0;      ///< when the last bytes arrived that count for the mean; 0: none
  TimeUs span_us_ = 0;      ///< how long the bytes of the running mean took to arrive
  TimeUs settled_at_ = 0;   ///< what comes before this time was held up
  double span_bytes_ = 0;
  TimeUs pause_since_ = 0;  ///< when the last bytes arrived that may count for a pause; 0: none
  TimeUs pause_now_ = 0;    ///< longest in the window that runs, and in the one before
  TimeUs pause_before_ = 0;
};

}  // namespace gossamer::peer
