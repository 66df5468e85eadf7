// The process at the other end of a socket of this machine, by the kernel's word.

#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

namespace gossamer::daemon {

struct Caller {
  pid_t process = 0;
  uid_t user = static_cast<uid_t>(-1);  ///< -1: nobody
  std::vector<gid_t> groups = {};       ///< its own group, and the supplementary ones
};

/// Who connected; nothing if the kernel does not say.
[[nodiscard]] std::optional<Caller> caller_of(int socket);
/// Root, and who runs the daemon.
[[nodiscard]] bool is_owner(uid_t user);

}  // namespace gossamer::daemon
