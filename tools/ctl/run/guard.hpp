// A small process that ends the clients' process groups if the launcher dies without having done so, by SIGKILL or a
// fault. The kernel ends the clients themselves (PR_SET_PDEATHSIG), but not the processes that they have started, such
// as data loaders.
//
// Made while the process has one thread. The launcher tells the guard about groups through a pipe.

#pragma once

#include <sys/types.h>

#include <expected>
#include <string>
#include <utility>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::ctl {

/// The guard can look after this many process groups.
inline constexpr std::size_t max_guarded = 256;

class Guard {
 public:
  [[nodiscard]] static std::expected<Guard, std::string> start();
  Guard(Guard&& other) noexcept = default;
  Guard& operator=(Guard&&) = delete;
  /// Ends the groups that were not removed.
  ~Guard();

  void add(pid_t group) const { tell({group, 1}); }
  void take_off(pid_t group) const { tell({group, 0}); }

 private:
  struct Message {
    pid_t group;
    int guarded;  // 1: guarded; 0: not
  };
  Guard(pid_t pid, FileDescriptor pipe) : pid_(pid), pipe_(std::move(pipe)) {}
  void tell(Message message) const;
  [[noreturn]] static void keep(int fd);

  pid_t pid_;
  FileDescriptor pipe_;
};

}  // namespace gossamer::ctl
