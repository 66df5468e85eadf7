// The process at the other end of a socket of this machine, by the kernel's word.

#pragma once

#include <sys/types.h>

#include <vector>

namespace gossamer::daemon {

struct Caller {
  static constexpr uid_t nobody = static_cast<uid_t>(-1);
  pid_t process = 0;
  uid_t user = nobody;             ///< nobody: the kernel does not say
  std::vector<gid_t> groups = {};  ///< its own group, and the supplementary ones
};

/// Returns the process that connected.
[[nodiscard]] Caller caller_of(int socket);
/// Root, and who runs the daemon.
[[nodiscard]] bool is_owner(uid_t user);

}  // namespace gossamer::daemon
