// Virtual time. The earliest event happens next; of events at the same time, the one that was scheduled first. Nothing
// else orders events, so one seed gives one run.
//
// Actions may schedule further actions. One thread.

#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "gossip/check.hpp"
#include "gossip/types.hpp"

namespace gossamer::sim {

class Schedule {
 public:
  using Action = std::move_only_function<void()>;

  [[nodiscard]] TimeUs now_us() const { return now_us_; }
  /// The number of events that have happened.
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] bool empty() const { return heap_.empty(); }

  /// `time_us` is not before now.
  void at(TimeUs time_us, Action action) {
    GOSSAMER_CHECK(time_us >= now_us_);
    heap_.push_back({time_us, sequence_++, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  void after(TimeUs delay_us, Action action) { at(now_us_ + delay_us, std::move(action)); }

  /// Runs the earliest event. False if there is none up to `end_us`; then the time is `end_us`.
  bool step(TimeUs end_us) {
    if (heap_.empty() || heap_.front().time_us > end_us) {
      now_us_ = std::max(now_us_, end_us);
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_us_ = event.time_us;
    ++events_;
    event.action();
    return true;
  }
  void run_until(TimeUs end_us) {
    while (step(end_us)) {
    }
  }

 private:
  struct Event {
    TimeUs time_us;
    std::uint64_t sequence;
    Action action;
  };
  static bool later(const Event& a, const Event& b) {
    return a.time_us != b.time_us ? a.time_us > b.time_us : a.sequence > b.sequence;
  }

  std::vector<Event> heap_;
  std::uint64_t sequence_ = 0;
  std::uint64_t events_ = 0;
  TimeUs now_us_ = 0;
};

}  // namespace gossamer::sim
