#include "peer/links/delay_estimate.hpp"

namespace gossamer::peer {
namespace {

constexpr double back_smoothing = 0.125;

}  // namespace

bool DelayEstimate::turn_window(TimeUs now) {
  const std::int64_t window = now / delay_window_us;
  if (window == window_) return false;
  // Over a longer time without bulk the round trip stays known. The ways there and back do not, as clocks drift apart.
  const bool next = window == window_ + 1;
  next ? round_trip_.turn() : round_trip_.keep();
  for (Least* way : {&there_, &back_})
    next ? way->turn() : way->forget();
  window_ = window;
  return true;
}

void DelayEstimate::observe(TimeUs sent_at, TimeUs now, TimeUs received_at) {
  observe_round_trip(sent_at, now);
  if (received_at == 0) {
    queue_back_us_ = 0;
    queue_there_us_ = now - sent_at - least_us();
    return;
  }
  const TimeUs there = received_at - sent_at;
  const TimeUs back = now - received_at;
  there_.see(there);
  back_.see(back);
  queue_there_us_ = there - there_.value();
  const TimeUs waited = std::min(back - back_.value(), most_back_us);
  queue_back_us_ += back_smoothing * (static_cast<double>(waited) - queue_back_us_);
}

TimeUs DelayEstimate::least_us() const {
  if (!round_trip_.known()) return 0;
  const TimeUs whole = round_trip_.value();
  if (!there_.known()) return whole;
  // Each direction's queue was empty at some time, though perhaps not both at once. The sum is bounded, because clocks
  // may be set to run faster.
  return std::clamp(there_.value() + back_.value(), (whole + 1) / 2, whole);
}

}  // namespace gossamer::peer
