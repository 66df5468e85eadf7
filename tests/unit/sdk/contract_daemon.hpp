// A fake of the daemon's side of the shared-memory contract, over a real Unix socket and a real memfd. It listens,
// accepts a client, maps the memory that it brings, and then does to the memory exactly what the test says, right or
// wrong.
//
// The test's thread uses it, and the client's own thread is at the other end. Every wait is bounded.

#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sdk/layout/attach.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/shared_memory.hpp"
#include "temporary_folder.hpp"

namespace gossamer::test {

inline constexpr int patience_ms = 20'000;

/// Returns true as soon as `condition` holds, and false if it does not within the bound.
[[nodiscard]] inline bool eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

[[nodiscard]] inline bool readable(int descriptor, int timeout_ms = patience_ms) {
  pollfd wait{descriptor, POLLIN, 0};
  return poll(&wait, 1, timeout_ms) == 1;
}

using gossamer::TemporaryFolder;

/// One client that has connected, as the daemon sees it.
class ContractClient {
 public:
  explicit ContractClient(FileDescriptor socket) : socket_(std::move(socket)) { receive_request(); }
  ContractClient(const ContractClient&) = delete;
  ContractClient& operator=(const ContractClient&) = delete;
  ~ContractClient() {
    if (base_ != nullptr) munmap(base_, request.memory_bytes);
    if (device_base_ != nullptr) munmap(device_base_, device.bytes);
  }

  void reply(layout::AttachStatus status, const std::string& message = "") {
    layout::AttachReply answer{};
    answer.magic = layout::attach_magic;
    answer.version = layout::attach_version;
    answer.status = static_cast<std::uint32_t>(status);
    answer.node_id[0] = 0xab;
    std::strncpy(answer.message, message.c_str(), sizeof answer.message - 1);
    if (send(socket_.get(), &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) throw std::runtime_error("reply");
  }
  /// Accepts, and takes the run straight to the state given.
  void accept(layout::RunState state = layout::RunState::running) {
    header().state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
    reply(layout::AttachStatus::accepted);
  }

  [[nodiscard]] layout::Header& header() const { return *reinterpret_cast<layout::Header*>(base_); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {base_, request.memory_bytes}; }
  [[nodiscard]] const layout::TensorEntry& tensor(std::size_t index) const {
    return reinterpret_cast<const layout::TensorEntry*>(base_ + header().tensors_offset)[index];
  }
  [[nodiscard]] std::string tensor_name(std::size_t index) const {
    return {reinterpret_cast<const char*>(base_ + tensor(index).name_offset), tensor(index).name_bytes};
  }
  [[nodiscard]] layout::FragmentEntry& fragment(std::uint32_t index) const {
    return reinterpret_cast<layout::FragmentEntry*>(base_ + header().fragments_offset)[index];
  }
  [[nodiscard]] layout::Word word(std::uint32_t index) const {
    return layout::Word::unpack(fragment(index).word.load(std::memory_order_acquire));
  }
  /// A fragment's buffer, in host memory or on the GPU.
  [[nodiscard]] std::span<float> buffer(std::uint32_t index, std::uint8_t which) const {
    const std::uint64_t at = (std::uint64_t{index} * layout::buffers_per_fragment + which) * header().buffer_stride;
    std::byte* const buffers = has_device_memory() ? device_base_ : base_ + header().buffers_offset;
    return {reinterpret_cast<float*>(buffers + at), header().fragment_elements};
  }
  /// Whether the client has brought memory of a (fake) GPU.
  [[nodiscard]] bool has_device_memory() const { return device_base_ != nullptr; }
  [[nodiscard]] std::span<float> publication(std::uint32_t index) const {
    return buffer(index, word(index).publication);
  }

  /// Gives a fragment to the client: with a correction (every element) to add or to take over, or without one.
  void make_due(std::uint32_t index, const std::vector<float>& correction = {}, bool replace = false) {
    layout::Word next = word(index);
    if (!correction.empty()) {
      const std::uint8_t target = next.spare();
      std::ranges::copy(correction, buffer(index, target).begin());
      next.correction = target;
      next.correction_valid = true;
      next.replace = replace;
    }
    next.with_client = true;
    fragment(index).word.store(next.pack(), std::memory_order_release);
  }
  /// Takes memory for the buffers of a fragment of lean memory.
  void provide(std::uint32_t index) {
    const std::uint64_t bytes = layout::buffers_per_fragment * header().buffer_stride;
    const auto at = static_cast<off_t>(header().buffers_offset + index * bytes);
    if (posix_fallocate(memory_.get(), at, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("no memory");
  }
  /// Releases the memory for a fragment's buffers.
  void vacate(std::uint32_t index) {
    const std::uint64_t bytes = layout::buffers_per_fragment * header().buffer_stride;
    const auto at = static_cast<off_t>(header().buffers_offset + index * bytes);
    if (fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, static_cast<off_t>(bytes)) != 0)
      throw std::runtime_error("no hole");
  }
  void announce() { header().due_sequence.fetch_add(1, std::memory_order_release); }

  /// The number of rings since the last call; 0 if there are none now.
  [[nodiscard]] std::uint64_t doorbell_rings() const {
    std::uint64_t rings = 0;
    return read(doorbell_.get(), &rings, sizeof rings) == sizeof rings ? rings : 0;
  }
  [[nodiscard]] int memory_file() const { return memory_.get(); }
  [[nodiscard]] int socket() const { return socket_.get(); }
  /// The inode of the memory's file, to compare it with that of another.
  [[nodiscard]] std::uint64_t memory_inode() const {
    struct stat info {};
    fstat(memory_.get(), &info);
    return info.st_ino;
  }

  layout::AttachRequest request{};
  layout::DeviceOffer device{};

 private:
  void receive_request() {
    if (!readable(socket_.get())) throw std::runtime_error("the client sent no request");
    std::array<int, 3> descriptors{-1, -1, -1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptors)> control{};
    std::array<iovec, 2> data = {iovec{&request, sizeof request}, iovec{&device, sizeof device}};
    msghdr message{};
    message.msg_iov = data.data();
    message.msg_iovlen = data.size();
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    const bool with_device = (request.flags & layout::attach_device) != 0;
    if (received != static_cast<ssize_t>(sizeof request + (with_device ? sizeof device : 0)))
      throw std::runtime_error("request size");
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    const std::size_t descriptors_bytes = (with_device ? 3 : 2) * sizeof(int);
    if (header == nullptr || header->cmsg_len != CMSG_LEN(descriptors_bytes)) throw std::runtime_error("descriptors");
    std::memcpy(descriptors.data(), CMSG_DATA(header), descriptors_bytes);
    memory_ = FileDescriptor(descriptors[0]);
    doorbell_ = FileDescriptor(descriptors[1]);
    if (with_device) map_device(FileDescriptor(descriptors[2]));
    void* base = mmap(nullptr, request.memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    if (base == MAP_FAILED) throw std::runtime_error("mmap");
    base_ = static_cast<std::byte*>(base);
  }

  void map_device(const FileDescriptor& memory) {
    void* base = mmap(nullptr, device.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    if (base == MAP_FAILED) throw std::runtime_error("mmap of the device's memory");
    device_base_ = static_cast<std::byte*>(base);
  }

  FileDescriptor socket_;
  FileDescriptor memory_;
  FileDescriptor doorbell_;
  std::byte* base_ = nullptr;
  std::byte* device_base_ = nullptr;
};

class ContractDaemon {
 public:
  ContractDaemon() { listen(); }

  [[nodiscard]] std::string path() const { return folder_.file("client.sock"); }
  /// The path for options.socket_path, valid as long as this object.
  [[nodiscard]] const char* c_path() const { return c_path_.c_str(); }

  [[nodiscard]] FileDescriptor accept_socket() {
    if (!readable(listener_.get())) throw std::runtime_error("no client connected");
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) throw std::runtime_error("accept");
    return socket;
  }
  [[nodiscard]] std::unique_ptr<ContractClient> accept() { return std::make_unique<ContractClient>(accept_socket()); }
  [[nodiscard]] bool has_caller(int timeout_ms) const { return readable(listener_.get(), timeout_ms); }

  /// Dies without a word: the socket is gone.
  void die() {
    listener_.reset();
    std::filesystem::remove(path());
  }
  void listen() {
    listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_.get(), 4) != 0) {
      throw std::runtime_error("cannot listen at " + path());
    }
  }

 private:
  TemporaryFolder folder_;
  std::string c_path_ = folder_.file("client.sock");
  FileDescriptor listener_;
};

}  // namespace gossamer::test
