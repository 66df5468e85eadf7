// The process at the other end of a socket of this machine, as the kernel reports it.

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
/// Whether the user is root or the user that the daemon runs as.
[[nodiscard]] bool is_owner(uid_t user);

}  // namespace gossamer::daemon
