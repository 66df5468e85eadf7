#include "daemon/system/caller.hpp"

#include <sys/socket.h>
#include <unistd.h>

namespace gossamer::daemon {

Caller caller_of(int socket) {
  ucred process{};
  socklen_t size = sizeof process;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &size) != 0) return {};
  Caller caller{process.pid, process.uid, {}};
  // If the room is too small, the kernel stores the size that it needs.
  size = 0;
  ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &size);
  caller.groups.resize(size / sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, caller.groups.data(), &size) != 0) caller.groups.clear();
  caller.groups.push_back(process.gid);
  return caller;
}

bool is_owner(uid_t user) {
  return user == 0 || user == ::geteuid();
}

}  // namespace gossamer::daemon
