// The descriptors that came with a datagram (SCM_RIGHTS). Any thread.

#pragma once

#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

/// Room for more descriptors than a request has, so that too many are noticed; the kernel closes the rest.
inline constexpr std::size_t descriptor_room = 8;

/// Owns all of them, so that those that nobody wants are closed.
[[nodiscard]] inline std::vector<FileDescriptor> take_descriptors(msghdr& message) {
  std::vector<FileDescriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace gossamer::daemon
