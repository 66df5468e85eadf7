// The system calls of client_handshake.hpp.

#include "daemon/clients/client_handshake.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "sdk/layout/datagram.hpp"

namespace gossamer::daemon {
namespace {

using layout::AttachReply;
using layout::AttachRequest;
using layout::AttachStatus;
using layout::DeviceOffer;

/// Reads without waiting, whatever flags the client has set. Linux before 5.8 and QEMU cannot do that; there O_NONBLOCK
/// is set before each read.
bool read_at_once(int eventfd, std::uint64_t& count) {
  const iovec data{&count, sizeof count};
  const ssize_t got = ::preadv2(eventfd, &data, 1, -1, RWF_NOWAIT);
  if (got >= 0 || errno != EOPNOTSUPP) return got == sizeof count;
  return ::fcntl(eventfd, F_SETFL, O_NONBLOCK) == 0 && ::read(eventfd, &count, sizeof count) == sizeof count;
}

bool is_eventfd(int fd) {
  std::array<char, 64> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  return size > 0 && std::string_view(target.data(), static_cast<std::size_t>(size)) == "anon_inode:[eventfd]";
}

}  // namespace

AttachRefusal out_of_descriptors() {
  return AttachRefusal{AttachStatus::limit_reached,
                       "gossamerd has no file descriptors left for another client: raise its limit on open files "
                       "(LimitNOFILE= of the unit, ulimit -n) and restart it"};
}

namespace {

constexpr std::size_t longest = sizeof(AttachRequest) + sizeof(DeviceOffer);

std::variant<AttachOffer, AttachRefusal, Disconnected, NothingYet> read_attach(std::span<const std::byte> bytes,
                                                                               std::vector<FileDescriptor> descriptors,
                                                                               bool some_lost) {
  const auto wrong_size = [&](std::size_t size, const char* what) {
    return AttachRefusal{AttachStatus::version_differs,
                         fmt::format("an attach request{} has {} bytes, this one has {}", what, size,
                                     bytes.size() > size ? "more" : std::to_string(bytes.size()))};
  };
  if (bytes.size() < sizeof(AttachRequest) || bytes.size() > longest) return wrong_size(sizeof(AttachRequest), "");
  AttachRequest request;
  std::memcpy(&request, bytes.data(), sizeof request);
  if (request.magic != layout::attach_magic)
    return AttachRefusal{AttachStatus::version_differs, "this is not an attach request: its mark is wrong"};
  if (request.version != layout::attach_version)
    return AttachRefusal{
        AttachStatus::version_differs,
        fmt::format("the client speaks version {} of the handshake, this daemon version {}: use the client "
                    "library that came with this daemon",
                    request.version, layout::attach_version)};
  if ((request.flags & ~(layout::attach_resume | layout::attach_device | layout::attach_kept)) != 0)
    return AttachRefusal{AttachStatus::version_differs, fmt::format("flags {:#x} are not known", request.flags)};
  const bool on_device = (request.flags & layout::attach_device) != 0;
  if (!on_device && bytes.size() != sizeof(AttachRequest)) return wrong_size(sizeof(AttachRequest), "");
  if (on_device && bytes.size() != longest) return wrong_size(longest, " with buffers in a GPU's memory");
  const bool has_kept = (request.flags & layout::attach_kept) != 0;
  const std::size_t expected = 2U + (on_device ? 1 : 0) + (has_kept ? 1 : 0);
  if (some_lost && descriptors.size() < expected) return out_of_descriptors();
  if (descriptors.size() != expected || some_lost)
    return AttachRefusal{AttachStatus::bad_layout,
                         fmt::format("a request carries {} descriptors, a memfd, an eventfd{}{}; {} came{}", expected,
                                     on_device ? ", a GPU's memory" : "", has_kept ? ", what it has kept" : "",
                                     descriptors.size(), some_lost ? ", and some were lost" : "")};
  if (!is_eventfd(descriptors[1].get()))
    return AttachRefusal{AttachStatus::bad_layout, "the second descriptor is not an eventfd"};
  AttachOffer offer{.memory = std::move(descriptors[0]),
                    .wake = std::move(descriptors[1]),
                    .memory_bytes = request.memory_bytes,
                    .resume = (request.flags & layout::attach_resume) != 0};
  if (has_kept) offer.kept = std::move(descriptors.back());
  if (on_device) {
    DeviceOffer device;
    std::memcpy(&device, bytes.data() + sizeof request, sizeof device);
    offer.device = {.gpu = std::to_array(device.uuid), .bytes = device.bytes, .memory = std::move(descriptors[2])};
  }
  return offer;
}

}  // namespace

std::variant<AttachOffer, AttachRefusal, Disconnected, NothingYet> receive_attach(int socket) {
  std::array<std::byte, longest + 1> bytes;  // one byte more, to notice a longer datagram
  ReceivedDatagram datagram = receive_datagram(socket, bytes);
  if (datagram.size < 0 && (errno == EAGAIN || errno == EINTR)) return NothingYet{};
  if (datagram.size < 0) return Disconnected{};
  if (datagram.size == 0 && datagram.descriptors.empty()) return Disconnected{};

  const std::span<const std::byte> received = std::span(bytes).first(static_cast<std::size_t>(datagram.size));
  return read_attach(received, std::move(datagram.descriptors), datagram.some_lost);
}

void send_reply(int socket, const NodeId& node, AttachStatus status, std::string_view message, int to_keep) {
  AttachReply reply{};
  reply.magic = layout::attach_magic;
  reply.version = layout::attach_version;
  reply.status = static_cast<std::uint32_t>(status);
  static_assert(sizeof reply.node_id == sizeof node.bytes);
  std::memcpy(reply.node_id, node.bytes.data(), sizeof reply.node_id);
  std::memcpy(reply.message, message.data(), std::min(message.size(), sizeof reply.message - 1));
  iovec data{&reply, sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof to_keep)> control{};
  msghdr datagram{};
  datagram.msg_iov = &data;
  datagram.msg_iovlen = 1;
  if (to_keep >= 0) {
    datagram.msg_control = control.data();
    datagram.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&datagram);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof to_keep);
    std::memcpy(CMSG_DATA(header), &to_keep, sizeof to_keep);
  }
  [[maybe_unused]] const ssize_t sent = ::sendmsg(socket, &datagram, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Rung drain_eventfd(int eventfd) {
  constexpr int most_reads = 16;  // one read empties it, but the client may ring meanwhile
  std::uint64_t count = 0;
  for (int reads = 0; reads < most_reads; ++reads) {
    if (!read_at_once(eventfd, count)) return reads == 0 ? Rung::no : Rung::yes;
  }
  return Rung::without_end;
}

}  // namespace gossamer::daemon
