#include "tools/bench/fake_daemon.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "sdk/layout/attach.hpp"
#include "sdk/layout/socket_path.hpp"

namespace gossamer::bench {
namespace {

constexpr int patience_ms = 10'000;

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what + ": " + std::strerror(errno));
}

void wait_readable(const FileDescriptor& descriptor, const char* what) {
  pollfd wait{descriptor.get(), POLLIN, 0};
  require(poll(&wait, 1, patience_ms) == 1, what);
}

}  // namespace

FakeDaemon::FakeDaemon() : socket_path_((folder_.path() / layout::client_socket_name).string()) {
  listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto address = layout::socket_address(socket_path_);
  if (!address) throw std::runtime_error(address.error());
  require(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0 &&
              listen(listener_.get(), 1) == 0,
          "cannot listen at " + socket_path_);
}

FakeDaemon::~FakeDaemon() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

void FakeDaemon::accept() {
  wait_readable(listener_, "the client did not connect");
  socket_ = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  wait_readable(socket_, "the client sent no request");
  layout::AttachRequest request{};
  std::array<int, 2> descriptors{-1, -1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptors)> control{};
  iovec data{&request, sizeof request};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  require(recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) == sizeof request, "the client's request was cut short");
  const cmsghdr* const ancillary = CMSG_FIRSTHDR(&message);
  require(ancillary != nullptr && ancillary->cmsg_len == CMSG_LEN(sizeof descriptors),
          "the client sent no descriptors");
  std::memcpy(descriptors.data(), CMSG_DATA(ancillary), sizeof descriptors);
  memory_ = FileDescriptor(descriptors[0]);
  doorbell_ = FileDescriptor(descriptors[1]);
  map_memory(request.memory_bytes);

  header().state.store(static_cast<std::uint32_t>(layout::RunState::running), std::memory_order_release);
  layout::AttachReply reply{};
  reply.magic = layout::attach_magic;
  reply.version = layout::attach_version;
  reply.status = static_cast<std::uint32_t>(layout::AttachStatus::accepted);
  require(send(socket_.get(), &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply, "the client went away");
}

void FakeDaemon::map_memory(std::uint64_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory_.get(), 0);
  require(base != MAP_FAILED, "cannot map the client's memory");
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
}

void FakeDaemon::make_due(std::uint32_t fragment) {
  layout::Word next = word(fragment);
  next.correction_valid = true;
  next.with_client = true;
  entry(fragment).word.store(next.pack(), std::memory_order_release);
  header().due_sequence.fetch_add(1, std::memory_order_release);
}

layout::FragmentEntry& FakeDaemon::entry(std::uint32_t fragment) const {
  return reinterpret_cast<layout::FragmentEntry*>(base_ + header().fragments_offset)[fragment];
}

layout::Word FakeDaemon::word(std::uint32_t fragment) const {
  return layout::Word::unpack(entry(fragment).word.load(std::memory_order_acquire));
}

std::span<float> FakeDaemon::buffer(std::uint32_t fragment, std::uint8_t index) const {
  const std::uint64_t offset =
      header().buffers_offset +
      (std::uint64_t{fragment} * layout::buffers_per_fragment + index) * header().buffer_stride;
  return {reinterpret_cast<float*>(base_ + offset), header().fragment_elements};
}

}  // namespace gossamer::bench
