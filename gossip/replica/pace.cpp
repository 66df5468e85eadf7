#include "gossip/replica/pace.hpp"

#include <algorithm>

namespace gossamer::gossip {

namespace {

/// Exchanges that may begin for each fragment and period. It is above one, so that a node within its period is never
/// delayed.
constexpr double begins_a_turn = 1.1;
constexpr double most_taken = 0.5;  ///< most that an exchange's delay and duration shorten the next wait, in periods

}  // namespace

Pace::Pace(const ReplicaOptions& options, std::size_t fragments)
    : fragments_(fragments), cadence_(options.period_us), budget_(options.bytes_per_s) {
  set_options(options, 0);
}

void Pace::set_options(const ReplicaOptions& options, TimeUs now_us) {
  time_share_ = options.time_share;
  network_share_ = options.network_share;
  budget_.set_rate(options.bytes_per_s);
  cadence_.set_least(options.period_us, now_us);
}

void Pace::add_work(const ExchangeCost::Work& work) {
  work_.exchanges += work.exchanges;
  work_.follow_ups += work.follow_ups;
  work_.publications += work.publications;
  work_.taken_us += work.taken_us;
}

void Pace::adjust(double distance, TimeUs step_us, TimeUs now_us) {
  cost_.add(std::exchange(work_, {}));
  const double allowed_bytes_per_s = network_share_ * capacity_;
  const double least_bytes_per_s =
      static_cast<double>(fragments_) * request_bytes_ / static_cast<double>(Cadence::most_us) * us_per_s;
  own_budget_.set_rate(allowed_bytes_per_s > 0 ? std::max(Cadence::own_share * allowed_bytes_per_s, least_bytes_per_s)
                                               : 0);
  cadence_.adjust(
      fragments_, cost_.us(), request_bytes_,
      {.time_share = time_share_, .bytes_per_s = allowed_bytes_per_s, .distance = distance, .step_us = step_us},
      now_us);
}

bool Pace::due(const Turn& turn, TimeUs now_us) const {
  return now_us >= turn.start_after_us && cadence_.passed(now_us) >= turn.starts_at;
}

/// After an exchange that took long or began late, about half a period remains in which others may ask.
double Pace::rest_periods(double due_at, double jitter, TimeUs now_us) const {
  return jitter - std::min(cadence_.passed(now_us) - due_at, most_taken);
}

/// A fragment that has not been exchanged yet need not wait for its period. With many fragments and a lengthened
/// period, the first round would therefore take all time and network. This limit spreads it. A few exchanges may be
/// saved up for times in which none could begin.
double Pace::may_begin(TimeUs now_us) const {
  const auto saved_up = static_cast<double>(2 * in_flight_);
  const double since = begins_a_turn * static_cast<double>(fragments_) * (cadence_.passed(now_us) - begins_left_at_);
  return std::min(saved_up, begins_left_ + since);
}

std::size_t Pace::begins_within(TimeUs time_us) const {
  const double periods = static_cast<double>(time_us) / static_cast<double>(std::max<TimeUs>(period_us(), 1));
  return static_cast<std::size_t>(std::min(periods, 1.0) * static_cast<double>(fragments_));
}

void Pace::count_begins(double count, TimeUs now_us) {
  begins_left_ = may_begin(now_us) - count;
  begins_left_at_ = cadence_.passed(now_us);
}

bool Pace::may_spend(std::size_t fragment_bytes, bool hurry, TimeUs now_us) const {
  const auto chance_bytes = static_cast<std::size_t>(2 * request_bytes_);  // this much may come together by chance
  if (!hurry && !own_budget_.open_in_debt(now_us, chance_bytes)) return false;
  return budget_.may_begin(fragment_bytes, now_us);
}

}  // namespace gossamer::gossip
