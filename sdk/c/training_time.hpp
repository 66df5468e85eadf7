// How much of its time a thread gives to a piece of work: the time that passes, with what it waits for in between. If
// another thread was given the processor meanwhile, only the processor time counts: on a busy machine most of what
// passes is somebody else's, and would make gossip look many times dearer than it is.
//
// A few system calls. One owner, one thread: the one that works.

#pragma once

#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <cstdint>

namespace gossamer::client {

class TrainingTime {
 public:
  TrainingTime() : begin_(now()) {}

  /// Since this was made.
  [[nodiscard]] std::uint64_t taken_ns() const {
    const Reading end = now();
    const bool preempted = end.preemptions != begin_.preemptions;
    const std::int64_t taken_ns = preempted ? end.processor_ns - begin_.processor_ns : end.passed_ns - begin_.passed_ns;
    return taken_ns > 0 ? static_cast<std::uint64_t>(taken_ns) : 0;
  }

 private:
  struct Reading {
    std::int64_t passed_ns;
    std::int64_t processor_ns;
    std::int64_t preemptions;
  };

  static Reading now() {
    timespec processor{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor);
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    const auto passed = std::chrono::steady_clock::now().time_since_epoch();
    return {.passed_ns = std::chrono::nanoseconds(passed).count(),
            .processor_ns = std::int64_t{processor.tv_sec} * 1'000'000'000 + processor.tv_nsec,
            .preemptions = usage.ru_nivcsw};
  }

  Reading begin_;
};

}  // namespace gossamer::client
