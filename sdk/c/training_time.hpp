// The time that a thread gives to a piece of work. This is its processor time, or the elapsed time if the thread has
// waited for something (a device, for instance). If another thread was given the processor in between, only the
// processor time counts: on a busy machine most of the elapsed time belongs to other threads, and gossip would seem
// many times dearer than it is.
//
// Measuring takes a few system calls. An object is used by one thread, the one that works.

#pragma once

#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <cstdint>

namespace gossamer::client {

class TrainingTime {
 public:
  /// The time since this object was made.
  [[nodiscard]] std::uint64_t taken_ns() const {
    // The readings are in the opposite order. A thread is most often preempted while a system call returns, and a
    // preemption that has lengthened the elapsed time must be noticed.
    const std::int64_t passed_ns = passed_now() - passed_ns_;
    const std::int64_t processor_ns = processor_now() - processor_ns_;
    const Switches end = switches_now();
    const bool preempted = end.involuntary != switches_.involuntary;
    const bool waited = end.voluntary != switches_.voluntary;
    const std::int64_t taken_ns = waited && !preempted ? passed_ns : processor_ns;
    return taken_ns > 0 ? static_cast<std::uint64_t>(taken_ns) : 0;
  }

 private:
  struct Switches {
    std::int64_t voluntary;
    std::int64_t involuntary;
  };

  static Switches switches_now() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return {.voluntary = usage.ru_nvcsw, .involuntary = usage.ru_nivcsw};
  }

  static std::int64_t processor_now() {
    timespec processor{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor);
    return std::int64_t{processor.tv_sec} * 1'000'000'000 + processor.tv_nsec;
  }

  static std::int64_t passed_now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // The readings at the beginning, in the order in which they are taken.
  const Switches switches_ = switches_now();
  const std::int64_t processor_ns_ = processor_now();
  const std::int64_t passed_ns_ = passed_now();
};

}  // namespace gossamer::client
