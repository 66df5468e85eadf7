// A small process that ends the clients' process groups if the launcher ends without having done so: killed, or by a
// fault. The kernel itself ends the clients (PR_SET_PDEATHSIG), but not what they have started, as data loaders.
//
// Made while the process has one thread. The guard hears of groups through a pipe, whose end is the launcher's.

#pragma once

#include <sys/types.h>

#include <expected>
#include <string>

namespace gossamer::ctl {

/// Process groups it can look after.
inline constexpr std::size_t max_guarded = 256;

class Guard {
 public:
  [[nodiscard]] static std::expected<Guard, std::string> start();
  Guard(Guard&& other) noexcept;
  Guard& operator=(Guard&&) = delete;
  /// Groups that were not taken off are ended.
  ~Guard();

  void add(pid_t group) const { tell({group, 1}); }
  void take_off(pid_t group) const { tell({group, 0}); }

 private:
  struct Message {
    pid_t group;
    int guarded;  // 1 or 0
  };
  Guard(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  void tell(Message message) const;
  [[noreturn]] static void keep(int fd);

  pid_t pid_;
  int fd_;
};

}  // namespace gossamer::ctl
