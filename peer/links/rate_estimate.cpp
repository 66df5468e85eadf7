#include "peer/links/rate_estimate.hpp"

#include <utility>

namespace gossamer::peer {

/// Takes the slower of the sending and the arrival rate, so that neither a burst of sends nor one of acknowledgements
/// counts as a fast link.
void RateEstimate::observe(const Progress& progress, bool filling, std::size_t window_bytes) {
  const SentPart& part = progress.last;
  if (!part.limited) {
    measured_at_ = progress.now;
    turn_window(progress.now);
  }
  if (!filling) return observe_mean(progress);
  TimeUs took_us = std::max(part.sent_at - part.first_sent_at, TimeUs{1});
  const bool told = progress.received_at != 0 && part.received_at != 0;
  took_us = std::max(took_us, told ? progress.received_at - part.received_at : progress.now - part.delivered_at);
  const std::uint64_t delivered = progress.delivered - part.delivered;
  const double rate = static_cast<double>(delivered) / static_cast<double>(took_us) * us_per_s;
  if (part.limited && rate <= value()) return;
  // After a pause a traffic shaper lets a short burst pass. The burst does not show the shaper's rate.
  if (part.limited && measured() && delivered < window_bytes / 2) return;
  now_ = std::max(now_, rate);
}

/// Measures over a whole span, because one message may take only a small part of it. What a loss or a busy processor
/// held up comes at once when the pause is over, and belongs to the same span as the pause. What is still held behind a
/// loss has come.
void RateEstimate::observe_mean(const Progress& progress) {
  const TimeUs at = progress.arrived_at();
  const TimeUs since = std::exchange(span_at_, progress.last.limited ? 0 : at);
  const bool settles = at < settled_at_ && settled_at_ - at <= rate_settling_us;  // the clock may have gone back
  if (span_us_ >= rate_span_us && !settles) {
    now_ = std::max(now_, span_bytes_ / static_cast<double>(span_us_) * us_per_s);
    span_us_ = 0;
    span_bytes_ = 0;
  }
  if (progress.last.limited || since == 0 || at < since) return;
  if (at - since > rate_settling_us) settled_at_ = at + rate_settling_us;
  span_us_ += at - since;
  span_bytes_ += static_cast<double>(progress.bytes) + static_cast<double>(progress.held_more);
}

void RateEstimate::turn_window(TimeUs now) {
  const TimeUs age = now - window_since_;
  if (age < rate_window_us) return;
  const bool recent = age < 2 * rate_window_us;
  // A link that is seldom full gives a mean less often than once a window. The last mean holds until the next one,
  // since without any the link's window would be next to nothing.
  if (now_ > 0) before_ = now_;
  pause_before_ = recent ? pause_now_ : 0;
  now_ = 0;
  pause_now_ = 0;
  window_since_ = now;
}

void RateEstimate::observe_pause(const Progress& progress, bool counts) {
  const TimeUs since = std::exchange(pause_since_, counts ? progress.received_at : 0);
  if (pause_since_ == 0 || since == 0 || value() <= 0) return;
  const auto needed_us = static_cast<TimeUs>(static_cast<double>(progress.bytes) / value() * us_per_s);
  pause_now_ = std::max(pause_now_, progress.received_at - since - needed_us);
}

}  // namespace gossamer::peer
