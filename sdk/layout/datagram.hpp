// Datagrams of a Unix socket, with the descriptors that travel with them (SCM_RIGHTS). Any thread.

#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer {

/// Room for more descriptors than a request has, so that too many are noticed; the kernel closes the rest.
inline constexpr std::size_t descriptor_room = 8;

/// Returns owners of all received descriptors, so that those that nobody uses are closed.
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

/// Sends all of `data` as one datagram. Returns what sendmsg() returns: below 0, errno says why. At most
/// descriptor_room descriptors, which stay the caller's.
[[nodiscard]] inline ssize_t send_datagram(int socket, std::span<iovec> data, std::span<const int> descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * descriptor_room)> control{};
  msghdr message{};
  message.msg_iov = data.data();
  message.msg_iovlen = data.size();
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

struct ReceivedDatagram {
  ssize_t size = 0;  ///< as recvmsg() returned it: below 0, errno says why
  std::vector<FileDescriptor> descriptors = {};
  bool some_lost = false;  ///< more descriptors were sent than arrived, because there was no room for them
};

/// Does not wait. `into` has one byte more than a datagram may have, so that a longer one is noticed.
[[nodiscard]] inline ReceivedDatagram receive_datagram(int socket, std::span<std::byte> into) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * descriptor_room)> control{};
  iovec data{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ReceivedDatagram received{.size = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)};
  if (received.size < 0) return received;
  received.descriptors = take_descriptors(message);
  received.some_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return received;
}

}  // namespace gossamer
