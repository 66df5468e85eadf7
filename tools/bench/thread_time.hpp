// CPU time by thread, of this process or of a child, as the kernel counts it. It gives the cost of a stage whatever
// else the machine does. Any thread. Failures are exceptions, which end the benchmark with a message.

#pragma once

#include <sys/types.h>

#include <set>
#include <string_view>
#include <vector>

namespace gossamer::bench {

/// The seconds that the calling thread has used.
[[nodiscard]] double own_cpu_s();

/// The seconds used by those threads of a process whose names begin with `name`. In a daemon, "gossamerd" is the loop,
/// "worker" the workers, and "ZMQbg" the threads that ZeroMQ started.
[[nodiscard]] double cpu_s(pid_t process, std::string_view name);

/// The threads of this process that were started during this object's life, for instance those of a ZeroMQ context.
class StartedThreads {
 public:
  StartedThreads();
  /// Ends the list: threads that start later are not counted.
  void note();
  [[nodiscard]] double cpu_s() const;
  /// The CPU time of each of these threads, always in the same order.
  [[nodiscard]] std::vector<double> each_cpu_s() const;

 private:
  std::set<pid_t> before_, threads_;
};

}  // namespace gossamer::bench
