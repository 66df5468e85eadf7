// How much of its time a thread gives to a piece of work: its processor time, or, if it has waited for something (a
// device, say), the time that passed. If another thread was given the processor meanwhile, only the processor time
// counts: on a busy machine most of what passes is somebody else's, and would make gossip look many times dearer than
// it is.
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
  TrainingTime() {
    begin_.switches = switches_now();
    begin_.processor_ns = processor_now();
    begin_.passed_ns = passed_now();
  }

  /// Since this was made.
  [[nodiscard]] std::uint64_t taken_ns() const {
    // In the opposite order: the thread is put off while a system call returns rather than at any other time, and that
    // must be seen if it has made the time that passed longer.
    const std::int64_t passed_ns = passed_now() - begin_.passed_ns;
    const std::int64_t processor_ns = processor_now() - begin_.processor_ns;
    const Switches end = switches_now();
    const bool preempted = end.involuntary != begin_.switches.involuntary;
    const bool waited = end.voluntary != begin_.switches.voluntary;
    const std::int64_t taken_ns = waited && !preempted ? passed_ns : processor_ns;
    return taken_ns > 0 ? static_cast<std::uint64_t>(taken_ns) : 0;
  }

 private:
  struct Switches {
    std::int64_t voluntary;
    std::int64_t involuntary;
  };
  struct Reading {
    Switches switches;
    std::int64_t processor_ns;
    std::int64_t passed_ns;
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

  Reading begin_{};
};

}  // namespace gossamer::client
