// CPU time by thread, of this process or of a child, as the kernel counts it: what a stage costs, whatever else the
// machine does meanwhile. Any thread. Failures are exceptions, which end the benchmark with a message.

#pragma once

#include <sys/types.h>

#include <set>
#include <string_view>
#include <vector>

namespace gossamer::bench {

/// Seconds that the calling thread has used.
[[nodiscard]] double own_cpu_s();

/// Seconds that a process's threads have used whose names begin with `name`. A daemon's: "gossamerd" the loop,
/// "worker" the workers, "ZMQbg" what ZeroMQ started.
[[nodiscard]] double cpu_s(pid_t process, std::string_view name);

/// The threads of this process that were started during this object's life: those of a ZeroMQ context, say.
class StartedThreads {
 public:
  StartedThreads();
  /// Those started until now; later ones are not counted.
  void note();
  [[nodiscard]] double cpu_s() const;
  /// Of each, in no order that means anything, but the same each time.
  [[nodiscard]] std::vector<double> each_cpu_s() const;

 private:
  std::set<pid_t> before_, threads_;
};

}  // namespace gossamer::bench
