#include "peer/pacing.hpp"

#include <algorithm>

namespace gossamer::peer {
namespace {

/// While the rate is still being looked for, the window doubles with every round trip.
constexpr double filling_gain = 2;
/// While the queue drains, this much of what fits the link may be under way.
constexpr double draining_share = 0.5;
constexpr double goodput_smoothing = 0.25;
constexpr TimeUs draining_most_us = 500 * us_per_ms;

TimeUs least_of(TimeUs a, TimeUs b) {
  return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

}  // namespace

bool Pacing::open() const {
  if (!enabled_) return true;
  return parts_.size() < most_under_way && under_way_bytes() < window_bytes();
}

void Pacing::sent(std::size_t bytes, bool more_waits, TimeUs now) {
  if (under_way_bytes() == 0) first_sent_at_ = delivered_at_ = now;
  sent_ += bytes;
  if (!enabled_) return;
  turn_delay_window(now);
  parts_.push_back({.end = sent_,
                    .sent_at = now,
                    .delivered = delivered_,
                    .delivered_at = delivered_at_,
                    .first_sent_at = first_sent_at_,
                    .limited = delivered_ <= limited_until_});
  if (!more_waits && open()) held_back();
}

void Pacing::held_back() {
  limited_until_ = sent_;
  loaded_since_ = 0;
}

bool Pacing::acknowledged(std::uint64_t total_bytes, TimeUs now) {
  if (total_bytes > sent_) return false;
  if (total_bytes <= delivered_) return true;
  delivered_ = total_bytes;
  delivered_at_ = now;
  Part last;
  while (!parts_.empty() && parts_.front().end <= total_bytes) {
    last = parts_.front();
    parts_.pop_front();
  }
  if (last.end == 0) return true;
  turn_delay_window(now);
  observe_rate(last, now);
  observe_goodput(last.limited, now);
  const TimeUs delay = now - last.sent_at;
  const double usual_us = static_cast<double>(least_delay_us()) + allowed_us();
  if (!last.limited && static_cast<double>(delay) > usual_us) filling_ = false;
  observe_delay(delay, now);
  first_sent_at_ = last.sent_at;
  drain(now);
  return true;
}

/// The slower of sending and acknowledging: neither a burst of acknowledgements nor one of sends counts as a fast link.
void Pacing::observe_rate(const Part& part, TimeUs now) {
  const TimeUs took_us = std::max({part.sent_at - part.first_sent_at, now - part.delivered_at, TimeUs{1}});
  const double rate = static_cast<double>(delivered_ - part.delivered) / static_cast<double>(took_us) * us_per_s;
  if (part.limited && rate <= this->rate()) return;
  // A shaper lets a little pass at once after a pause: that is not what it gives for long.
  if (part.limited && measured_ && delivered_ - part.delivered < window_bytes() / 2) return;
  if (!part.limited) {
    measured_ = true;
    measured_at_ = now;
    if (const TimeUs age = now - rate_window_since_; age >= rate_window_us) {
      rate_before_ = age < 2 * rate_window_us ? rate_now_ : 0;
      rate_now_ = 0;
      rate_window_since_ = now;
    }
  }
  rate_now_ = std::max(rate_now_, rate);
}

void Pacing::observe_goodput(bool limited, TimeUs now) {
  if (limited || loaded_since_ == 0) {
    loaded_since_ = limited ? 0 : now;
    delivered_then_ = delivered_;
    return;
  }
  const TimeUs span_us = now - loaded_since_;
  if (span_us < goodput_span_us) return;
  const double goodput = static_cast<double>(delivered_ - delivered_then_) / static_cast<double>(span_us) * us_per_s;
  const bool fresh = goodput_ == 0 || now - goodput_at_ >= goodput_lifetime_us;
  goodput_ += (fresh ? 1 : goodput_smoothing) * (goodput - goodput_);
  goodput_at_ = loaded_since_ = now;
  delivered_then_ = delivered_;
}

void Pacing::observe_delay(TimeUs delay, TimeUs now) {
  turn_delay_window(now);
  delay_now_ = least_of(delay_now_, std::max<TimeUs>(delay, 1));
}

void Pacing::turn_delay_window(TimeUs now) {
  const std::int64_t window = now / delay_window_us;
  if (window == delay_window_) return;
  delay_before_ = window == delay_window_ + 1 ? delay_now_ : least_of(delay_now_, delay_before_);
  delay_now_ = 0;
  delay_window_ = window;
  // With the queue empty it is seen without further ado.
  draining_ = measured_ && now - measured_at_ < rate_window_us && limited_until_ < delivered_;
  draining_since_ = now;
  pinged_at_ = 0;
}

void Pacing::drain(TimeUs now) {
  if (draining_ && now - draining_since_ > draining_most_us) draining_ = false;
}

bool Pacing::take_ping_wish(TimeUs now) {
  if (!draining_ || pinged_at_ != 0 || under_way_bytes() > window_bytes()) return false;
  pinged_at_ = now;
  return true;
}

void Pacing::round_trip(TimeUs sent, TimeUs now) {
  observe_delay(now - sent, now);
  if (draining_ && pinged_at_ != 0 && sent >= pinged_at_) draining_ = false;
}

double Pacing::rate() const {
  return std::max(rate_now_, rate_before_);
}

double Pacing::goodput(TimeUs now) const {
  return now - goodput_at_ < goodput_lifetime_us ? goodput_ : 0;
}

TimeUs Pacing::least_delay_us() const {
  return least_of(delay_now_, delay_before_);
}

double Pacing::allowed_us() const {
  return std::max(static_cast<double>(least_delay_us()) / 2, static_cast<double>(allowed_delay_us));
}

std::size_t Pacing::window_bytes() const {
  const auto least_us = static_cast<double>(least_delay_us());
  const double rate_per_us = rate() / us_per_s;
  double window = rate_per_us * (least_us + allowed_us()) + static_cast<double>(window_constant_bytes);
  if (filling_) window = std::max(window * filling_gain, static_cast<double>(first_window_bytes));
  // One part at a time on a slow link: the heartbeat must find the queue empty.
  if (draining_)
    return static_cast<std::size_t>(
               std::min(draining_share * rate_per_us * least_us, static_cast<double>(most_window_bytes))) +
           1;
  return static_cast<std::size_t>(
      std::clamp(window, static_cast<double>(least_window_bytes), static_cast<double>(most_window_bytes)));
}

std::size_t Pacing::part_bytes() const {
  return std::max(window_bytes() / parts_in_window, least_part_bytes);
}

std::size_t Pacing::waiting_bytes(std::size_t most) const {
  if (!measured_) return most;
  const double waiting = rate() * static_cast<double>(waiting_us) / us_per_s;
  return static_cast<std::size_t>(
      std::clamp(waiting, static_cast<double>(std::min(least_waiting_bytes, most)), static_cast<double>(most)));
}

}  // namespace gossamer::peer
