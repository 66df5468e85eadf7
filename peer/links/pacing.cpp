#include "peer/links/pacing.hpp"

#include <algorithm>
#include <utility>

namespace gossamer::peer {
namespace {

/// While the rate is still being looked for, the window doubles with every round trip.
constexpr double filling_gain = 2;
/// While the queue drains, this share of what fits the link may be under way.
constexpr double draining_share = 0.5;
/// A queue on the way shows the link's rate only if at least this much is under way.
constexpr std::size_t telling_bytes = 2 * least_part_bytes;
constexpr TimeUs draining_most_us = 500 * us_per_ms;

}  // namespace

bool Pacing::open() const {
  if (!enabled_) return true;
  return parts_.size() < most_under_way &&
         under_way_bytes() < std::min<std::uint64_t>(window_bytes() + held_, most_window_bytes);
}

void Pacing::held_behind_loss(std::uint64_t bytes, TimeUs now) {
  held_ = bytes;
  if (bytes > 0) held_at_ = now;
}

void Pacing::sent(std::size_t bytes, bool more_waits, TimeUs now) {
  if (under_way_bytes() == 0) {
    first_sent_at_ = delivered_at_ = now;
    received_at_ = 0;
    rate_.pause();
    goodput_.pause();
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

bool Pacing::acknowledged(std::uint64_t total_bytes, TimeUs now, TimeUs received_at) {
  if (total_bytes > sent_) return false;
  if (total_bytes <= delivered_) return true;
  Progress progress{
      .bytes = total_bytes - delivered_, .delivered = total_bytes, .now = now, .received_at = received_at};
  progress.held_more = static_cast<std::int64_t>(held_ - std::exchange(held_then_, held_));
  delivered_ = total_bytes;
  delivered_at_ = now;
  received_at_ = received_at;
  SentPart& last = progress.last;
  while (!parts_.empty() && parts_.front().end <= total_bytes) {
    last = parts_.front();
    parts_.pop_front();
  }
  if (last.end == 0) return true;
  turn_delay_window(now);
  delay_.observe(last.sent_at, now, received_at);
  // If much has waited on its way, it shows the link's rate, whether more was to be sent or not. Otherwise, on a link
  // that has become much slower, the window would hold all there is to send and never shrink. If only a little has
  // waited, the cause may be a busy processor at the other end.
  const auto stands = [this] { return delay_.queue_there_us() > allowance_us(); };
  if (stands() && progress.bytes + under_way_bytes() >= telling_bytes) last.limited = false;
  rate_.observe(progress, filling_, window_bytes());
  rate_.observe_pause(progress, !last.limited && !draining_ && last.sent_at > drained_at_);
  const bool looked_for = filling_ && window_bytes() < most_window_bytes;
  goodput_.observe(progress, !looked_for && !draining_, window_bytes());
  if (!last.limited && stands() && now > held_at_ + rate_settling_us) filling_ = false;
  first_sent_at_ = last.sent_at;
  if (draining_ && now - draining_since_ > draining_most_us) end_drain(now);
  return true;
}

void Pacing::turn_delay_window(TimeUs now) {
  if (!delay_.turn_window(now)) return;
  // If the queue was empty lately, the least delay has been seen without a drain.
  draining_ = rate_.measured_lately(now) && limited_until_ < delivered_;
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
  delay_.observe_round_trip(sent, now);
  if (draining_ && pinged_at_ != 0 && sent >= pinged_at_) end_drain(now);
}

TimeUs Pacing::allowance_us() const {
  if (!delay_.knows_ways()) return std::max(least_delay_us() / 2, most_allowed_us);
  const double busy = static_cast<double>(most_allowed_us) * rate() / fast_bytes_per_s;
  const auto busy_us = static_cast<TimeUs>(std::min(busy, static_cast<double>(most_allowed_us)));
  const TimeUs uneven_us = std::max(rate_.longest_pause_us(), busy_us);
  return std::max(least_delay_us() / 3, std::clamp(uneven_us, least_allowed_us, most_allowed_us));
}

std::size_t Pacing::window_bytes() const {
  const auto least_us = static_cast<double>(least_delay_us());
  const double rate_per_us = rate() / us_per_s;
  const double carried_us = least_us + delay_.queue_back_us() + static_cast<double>(allowance_us());
  double window = rate_per_us * carried_us + static_cast<double>(window_constant_bytes);
  if (filling_) window = std::max(window * filling_gain, static_cast<double>(first_window_bytes));
  // On a slow link one part goes at a time, since the heartbeat must find the queue empty.
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
  return std::max(measured() ? std::min(share, static_cast<std::size_t>(timely)) : share, least_part_bytes);
}

std::size_t Pacing::waiting_bytes(std::size_t most) const {
  if (!measured()) return most;
  const double waiting = rate() * static_cast<double>(waiting_us) / us_per_s;
  return static_cast<std::size_t>(
      std::clamp(waiting, static_cast<double>(std::min(least_waiting_bytes, most)), static_cast<double>(most)));
}

}  // namespace gossamer::peer
