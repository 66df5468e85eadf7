#include "gossip/replica/pace.hpp"

#include <algorithm>

#include "gossip/smoothed.hpp"

namespace gossamer::gossip {

namespace {

/// For each fragment in a period: a few more than one, so that this holds nobody up who keeps to the period.
constexpr double begins_a_turn = 1.1;
constexpr double most_taken = 0.5;  ///< of the period, that its exchange counts as part of it

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

void Pace::adjust(double distance, TimeUs now_us) {
  cost_.add(std::exchange(work_, {}));
  const double allowed_bytes_per_s = network_share_ * capacity_;
  const double least_bytes_per_s =
      static_cast<double>(fragments_) * request_bytes_ / static_cast<double>(Cadence::most_us) * us_per_s;
  own_budget_.set_rate(allowed_bytes_per_s > 0 ? std::max(Cadence::own_share * allowed_bytes_per_s, least_bytes_per_s)
                                               : 0);
  cadence_.adjust(fragments_, cost_.us(), request_bytes_,
                  {.time_share = time_share_, .bytes_per_s = allowed_bytes_per_s, .distance = distance}, now_us);
}

bool Pace::due(const Turn& turn, TimeUs now_us) const {
  return now_us >= turn.start_after_us && cadence_.passed(now_us) >= turn.starts_at;
}

void Pace::start_by(Turn& turn, TimeUs start_us) const {
  if (!due(turn, start_us)) turn.start_at(start_us);
}

/// An exchange that took long, or began late, leaves half a period at least, in which others may ask.
double Pace::rest_periods(double due_at, double jitter, TimeUs now_us) const {
  return jitter - std::min(cadence_.passed(now_us) - due_at, most_taken);
}

/// A fragment that has not been exchanged yet need not wait for its period: of many, and with a period that the cadence
/// has lengthened, the first round would take whatever time and network give. A few beginnings may be saved up, for the
/// time when nothing could be begun.
double Pace::may_begin(TimeUs now_us) const {
  const auto saved_up = static_cast<double>(2 * in_flight_);
  const double since = begins_a_turn * static_cast<double>(fragments_) * (cadence_.passed(now_us) - begins_left_at_);
  return std::min(saved_up, begins_left_ + since);
}

void Pace::count_begins(double count, TimeUs now_us) {
  begins_left_ = may_begin(now_us) - count;
  begins_left_at_ = cadence_.passed(now_us);
}

/// With a debt only by turns with answers: neighbours that ask more than the rate allows would leave none for asking.
bool Pace::may_spend(std::size_t fragment_bytes, bool hurry, TimeUs now_us) const {
  const auto chance_bytes = static_cast<std::size_t>(2 * request_bytes_);  // so many may come together by chance
  if (!hurry && !own_budget_.open_in_debt(now_us, chance_bytes)) return false;
  const bool in_turn = last_spent_ == Spent::on_answer;
  return budget_.open(now_us) || (in_turn && budget_.open_in_debt(now_us, 2 * fragment_bytes));
}

void Pace::note_request(std::size_t bytes) {
  request_bytes_ = smoothed(request_bytes_, static_cast<double>(bytes));
}

}  // namespace gossamer::gossip
