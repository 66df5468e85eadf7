// Two real daemons on loopback, linked with each other, in a folder of their own. Main thread. Failures are
// exceptions, which end the benchmark with a message.

#pragma once

#include <optional>
#include <string>

#include "tools/bench/bench_run.hpp"
#include "tools/bench/daemon_process.hpp"

namespace gossamer::bench {

class DaemonPair {
 public:
  /// `program` is the gossamerd to run; empty: the one beside this program. `sections` is TOML for both daemons, with
  /// sections other than [node]; `overlay` has lines of [overlay].
  DaemonPair(const std::string& program, const std::string& overlay, const std::string& sections);

  [[nodiscard]] DaemonProcess& first() { return *first_; }
  [[nodiscard]] DaemonProcess& second() { return *second_; }

 private:
  TemporaryFolder folder_;
  std::optional<DaemonProcess> first_, second_;
};

}  // namespace gossamer::bench
