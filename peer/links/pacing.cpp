#include "peer/links/pacing.hpp"

#include <algorithm>
#include <vector>

namespace gossamer::peer {
namespace {

/// While the rate is still being looked for, the window doubles with every round trip.
constexpr double filling_gain = 2;
/// While the queue drains, this much of what fits the link may be under way.
constexpr double draining_share = 0.5;
constexpr double back_smoothing = 0.125;
/// What waits tells of the link from so much under way on.
constexpr std::size_t telling_bytes = 2 * least_part_bytes;
constexpr TimeUs draining_most_us = 500 * us_per_ms;

}  // namespace

bool Pacing::open() const {
  if (!enabled_) return true;
  return parts_.size() < most_under_way && under_way_bytes() < window_bytes();
}

void Pacing::sent(std::size_t bytes, bool more_waits, TimeUs now) {
  if (under_way_bytes() == 0) {
    first_sent_at_ = delivered_at_ = now;
    received_at_ = span_at_ = pause_since_ = loaded_at_ = 0;
  }
  sent_ += bytes;
  if (!enabled_) return;
  turn_delay_window(now);
  if (!filling_ && rate() > 0 && least_delay_us() >= paced_from_us) {
    const double took_us = static_cast<double>(bytes) / (paced_gain * rate()) * us_per_s;
    const double most_us = most_paced_us;
    next_at_ = std::max(next_at_, now - paced_credit_us) + static_cast<TimeUs>(std::min(took_us, most_us));
  }
  parts_.push_back({.end = sent_,
                    .sent_at = now,
                    .delivered = delivered_,
                    .delivered_at = delivered_at_,
                    .received_at = received_at_,
                    .first_sent_at = first_sent_at_,
                    .limited = delivered_ <= limited_until_});
  if (!more_waits && open()) held_back();
}

void Pacing::held_back() {
  limited_until_ = sent_;
}

bool Pacing::acknowledged(std::uint64_t total_bytes, TimeUs now, TimeUs received_at) {
  if (total_bytes > sent_) return false;
  if (total_bytes <= delivered_) return true;
  const std::uint64_t bytes = total_bytes - delivered_;
  delivered_ = total_bytes;
  delivered_at_ = now;
  received_at_ = received_at;
  Part last;
  while (!parts_.empty() && parts_.front().end <= total_bytes) {
    last = parts_.front();
    parts_.pop_front();
  }
  if (last.end == 0) return true;
  turn_delay_window(now);
  observe_delays(last, now, received_at);
  // Much that has waited on its way shows what the link lets pass, whether more was to be sent or not: of a link that
  // has become much slower the window would hold all there is, and stay as it is. A little may have waited for a
  // processor at the other end, and would tell of that.
  if (queue_there_us_ > allowance_us() && bytes + under_way_bytes() >= telling_bytes) last.limited = false;
  observe_rate(last, bytes, now, received_at);
  observe_pause(last, bytes, received_at);
  observe_goodput(last.limited, now, received_at);
  if (!last.limited && queue_there_us_ > allowance_us()) filling_ = false;
  first_sent_at_ = last.sent_at;
  if (draining_ && now - draining_since_ > draining_most_us) end_drain(now);
  return true;
}

/// The slower of sending and arriving: neither a burst of acknowledgements nor one of sends counts as a fast link.
void Pacing::observe_rate(const Part& part, std::uint64_t bytes, TimeUs now, TimeUs received_at) {
  if (!part.limited) {
    measured_ = true;
    measured_at_ = now;
    turn_rate_window(now);
  }
  if (!filling_) return observe_mean_rate(part, bytes, now, received_at);
  TimeUs took_us = std::max(part.sent_at - part.first_sent_at, TimeUs{1});
  const bool told = received_at != 0 && part.received_at != 0;
  took_us = std::max(took_us, told ? received_at - part.received_at : now - part.delivered_at);
  const double rate = static_cast<double>(delivered_ - part.delivered) / static_cast<double>(took_us) * us_per_s;
  if (part.limited && rate <= this->rate()) return;
  // A shaper lets a little pass at once after a pause: that is not what it gives for long.
  if (part.limited && measured_ && delivered_ - part.delivered < window_bytes() / 2) return;
  rate_now_ = std::max(rate_now_, rate);
}

/// Over the time in which there was more to send than fits; one message may take a small part of the span only.
void Pacing::observe_mean_rate(const Part& part, std::uint64_t bytes, TimeUs now, TimeUs received_at) {
  const TimeUs at = received_at != 0 ? received_at : now;
  const TimeUs since = std::exchange(span_at_, part.limited ? 0 : at);
  if (part.limited || since == 0 || at < since) return;
  span_us_ += at - since;
  span_bytes_ += static_cast<double>(bytes);
  if (span_us_ < rate_span_us) return;
  rate_now_ = std::max(rate_now_, span_bytes_ / static_cast<double>(span_us_) * us_per_s);
  span_us_ = 0;
  span_bytes_ = 0;
}

void Pacing::turn_rate_window(TimeUs now) {
  const TimeUs age = now - rate_window_since_;
  if (age < rate_window_us) return;
  const bool recent = age < 2 * rate_window_us;
  // A link that is seldom full gives a mean less often than once a window: the last one holds until then. Without any,
  // the window would be next to nothing.
  if (rate_now_ > 0) rate_before_ = rate_now_;
  pause_before_ = recent ? pause_now_ : 0;
  rate_now_ = 0;
  pause_now_ = 0;
  rate_window_since_ = now;
}

/// A pause is what acknowledged bytes took to come beyond their time on the link.
void Pacing::observe_pause(const Part& part, std::uint64_t bytes, TimeUs received_at) {
  const TimeUs since = std::exchange(pause_since_, received_at);
  if (part.limited || draining_ || part.sent_at <= drained_at_) pause_since_ = 0;
  if (pause_since_ == 0 || since == 0 || rate() <= 0) return;
  const auto needed_us = static_cast<TimeUs>(static_cast<double>(bytes) / rate() * us_per_s);
  pause_now_ = std::max(pause_now_, received_at - since - needed_us);
}

/// By the other clock where it is told: acknowledgements may have waited on their way back, and come all at once.
void Pacing::observe_goodput(bool limited, TimeUs now, TimeUs received_at) {
  const TimeUs at = received_at != 0 ? received_at : now;
  const bool looked_for = filling_ && window_bytes() < most_window_bytes;
  const TimeUs since = std::exchange(loaded_at_, looked_for || draining_ ? 0 : at);
  const std::uint64_t then = std::exchange(delivered_then_, delivered_);
  if (since == 0 || loaded_at_ < since) return;
  Mean& mean = limited ? limited_mean_ : loaded_mean_;
  if (mean.bytes == 0) mean.begun_at = now;
  mean.took_us += at - since;
  mean.bytes += delivered_ - then;
  const bool much = mean.took_us > 0 && mean.bytes >= std::max(goodput_windows * window_bytes(), first_window_bytes);
  if (mean.took_us < goodput_span_us && (!much || now - mean.begun_at < goodput_within_us)) return;
  const double found = static_cast<double>(mean.bytes) / static_cast<double>(mean.took_us) * us_per_s;
  mean = {};
  const double known = goodput(now);
  if (limited && (known == 0 || found <= known)) return;
  if (known == 0) goodputs_.clear();
  if (goodputs_.size() == goodput_means) goodputs_.pop_front();
  goodputs_.push_back(found);
  goodput_at_ = now;
}

void Pacing::observe_delays(const Part& part, TimeUs now, TimeUs received_at) {
  round_trip_.see(std::max<TimeUs>(now - part.sent_at, 1));
  if (received_at == 0) {
    back_queue_us_ = 0;
    queue_there_us_ = now - part.sent_at - least_delay_us();
    return;
  }
  const TimeUs there = received_at - part.sent_at;
  const TimeUs back = now - received_at;
  there_.see(there);
  back_.see(back);
  queue_there_us_ = there - there_.value();
  const TimeUs waited = std::min(back - back_.value(), most_back_us);
  back_queue_us_ += back_smoothing * (static_cast<double>(waited) - back_queue_us_);
}

void Pacing::turn_delay_window(TimeUs now) {
  const std::int64_t window = now / delay_window_us;
  if (window == delay_window_) return;
  // Over a longer time without bulk the round trip stays known; clocks drift apart, so the ways there and back do not.
  const bool next = window == delay_window_ + 1;
  next ? round_trip_.turn() : round_trip_.keep();
  for (Least* way : {&there_, &back_})
    next ? way->turn() : way->forget();
  delay_window_ = window;
  // With the queue empty it is seen without further ado.
  draining_ = measured_ && now - measured_at_ < rate_window_us && limited_until_ < delivered_;
  draining_since_ = now;
  pinged_at_ = 0;
}

void Pacing::end_drain(TimeUs now) {
  draining_ = false;
  drained_at_ = now;
}

bool Pacing::take_ping_wish(TimeUs now) {
  if (!draining_ || pinged_at_ != 0 || under_way_bytes() > window_bytes()) return false;
  pinged_at_ = now;
  return true;
}

void Pacing::round_trip(TimeUs sent, TimeUs now) {
  turn_delay_window(now);
  round_trip_.see(std::max<TimeUs>(now - sent, 1));
  if (draining_ && pinged_at_ != 0 && sent >= pinged_at_) end_drain(now);
}

double Pacing::rate() const {
  return std::max(rate_now_, rate_before_);
}

double Pacing::goodput(TimeUs now) const {
  if (goodputs_.empty() || now - goodput_at_ >= goodput_lifetime_us) return 0;
  std::vector<double> ordered(goodputs_.begin(), goodputs_.end());
  const auto middle = ordered.begin() + static_cast<std::ptrdiff_t>(ordered.size() / 2);
  std::ranges::nth_element(ordered, middle);
  return *middle;
}

TimeUs Pacing::least_delay_us() const {
  if (!round_trip_.known()) return 0;
  const TimeUs whole = round_trip_.value();
  if (!there_.known()) return whole;
  // Each direction's queue was empty at some time, if not both at once. Bounded, as clocks may be set to run faster.
  return std::clamp(there_.value() + back_.value(), (whole + 1) / 2, whole);
}

TimeUs Pacing::allowance_us() const {
  if (!there_.known()) return std::max(least_delay_us() / 2, most_allowed_us);
  const double busy = static_cast<double>(most_allowed_us) * rate() / fast_bytes_per_s;
  const auto busy_us = static_cast<TimeUs>(std::min(busy, static_cast<double>(most_allowed_us)));
  const TimeUs uneven_us = std::max({pause_now_, pause_before_, busy_us});
  return std::max(least_delay_us() / 3, std::clamp(uneven_us, least_allowed_us, most_allowed_us));
}

std::size_t Pacing::window_bytes() const {
  const auto least_us = static_cast<double>(least_delay_us());
  const double rate_per_us = rate() / us_per_s;
  const double carried_us = least_us + back_queue_us_ + static_cast<double>(allowance_us());
  double window = rate_per_us * carried_us + static_cast<double>(window_constant_bytes);
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
  const double timely = rate() * static_cast<double>(part_us) / us_per_s;
  const std::size_t share = window_bytes() / parts_in_window;
  return std::max(measured_ ? std::min(share, static_cast<std::size_t>(timely)) : share, least_part_bytes);
}

std::size_t Pacing::waiting_bytes(std::size_t most) const {
  if (!measured_) return most;
  const double waiting = rate() * static_cast<double>(waiting_us) / us_per_s;
  return static_cast<std::size_t>(
      std::clamp(waiting, static_cast<double>(std::min(least_waiting_bytes, most)), static_cast<double>(most)));
}

}  // namespace gossamer::peer
