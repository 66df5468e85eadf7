// A client as the daemon sees it: a memfd filled in by the rules of sdk/layout, and a socket. Written against the
// layout headers alone, so that it can also break every rule.

#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/layout/attach.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/hash.hpp"
#include "sdk/layout/shared_memory.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tests/unit/catch.hpp"

namespace gossamer::daemon::test {

struct TestTensor {
  std::string name;
  layout::Role role;
  std::vector<std::uint64_t> shape;
};

inline const std::vector<TestTensor> small_model = {
    {"weight", layout::Role::param, {30, 20}},
    {"steps", layout::Role::local, {1}},
    {"bias", layout::Role::param, {20}},
    {"mean", layout::Role::buffer, {}},
};  // 621 elements are averaged

/// A memfd mapped by the test, holding a valid model until the test changes something.
class TestMemory {
 public:
  explicit TestMemory(const std::vector<TestTensor>& tensors = small_model, std::uint32_t fragment_elements = 256,
                      const std::string& job = "digits") {
    std::string names;
    std::uint64_t elements = 0;
    std::vector<layout::TensorEntry> entries;
    std::vector<layout::TensorDescription> descriptions;
    for (const TestTensor& tensor : tensors) {
      layout::TensorEntry entry{};
      entry.name_offset = names.size();  // relative; the offset of the names is added below
      entry.name_bytes = static_cast<std::uint32_t>(tensor.name.size());
      entry.role = static_cast<std::uint8_t>(tensor.role);
      entry.dimensions = static_cast<std::uint8_t>(tensor.shape.size());
      entry.elements = 1;
      for (std::size_t i = 0; i < tensor.shape.size(); ++i)
        entry.elements *= entry.shape[i] = tensor.shape[i];
      if (tensor.role != layout::Role::local) {
        entry.first_element = elements;
        elements += entry.elements;
      }
      names += tensor.name;
      entries.push_back(entry);
      descriptions.push_back({tensor.name, layout::Dtype::f32, tensor.role, tensor.shape});
    }
    plan = layout::plan(elements, fragment_elements, static_cast<std::uint32_t>(tensors.size()), names.size());
    fd = FileDescriptor(::memfd_create("gossamer-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::posix_fallocate(fd.get(), 0, static_cast<off_t>(plan.total_bytes)) == 0);
    base = static_cast<std::byte*>(::mmap(nullptr, plan.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    REQUIRE(base != MAP_FAILED);

    layout::Header& h = header();
    h.magic = layout::magic;
    h.total_bytes = plan.total_bytes;
    h.layout_hash = layout::layout_hash(fragment_elements, descriptions);
    h.elements = elements;
    h.fragment_elements = fragment_elements;
    h.fragment_count = plan.fragment_count;
    h.tensor_count = static_cast<std::uint32_t>(tensors.size());
    h.header_bytes = sizeof(layout::Header);
    h.tensors_offset = plan.tensors_offset;
    h.names_offset = plan.names_offset;
    h.names_bytes = plan.names_bytes;
    h.fragments_offset = plan.fragments_offset;
    h.buffers_offset = plan.buffers_offset;
    h.buffer_stride = plan.buffer_stride;
    job.copy(h.job, sizeof h.job - 1);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].name_offset += plan.names_offset;
      tensor(i) = entries[i];
    }
    std::memcpy(base + plan.names_offset, names.data(), names.size());
    for (std::uint32_t f = 0; f < plan.fragment_count; ++f)
      fragment(f).word = layout::Word{}.pack();
    h.version.store(layout::version, std::memory_order_release);
  }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  ~TestMemory() { unmap(); }

  void give_settings(std::string_view text) {
    header().settings_bytes = text.size();
    std::ranges::copy(text, reinterpret_cast<char*>(base + layout::settings_offset));
  }
  /// Has the buffers in the memory of a fake GPU (tests/unit/daemon/device/fake_cuda_plugin.cpp) from now on, which
  /// exports it as a memfd.
  void move_to_device(const std::array<std::uint8_t, 16>& gpu) {
    constexpr std::size_t page_bytes = 2 << 20;
    device = Device{};
    device->bytes = (layout::device_bytes(plan) + page_bytes - 1) / page_bytes * page_bytes;
    device->descriptor = FileDescriptor(::memfd_create("fake-gpu-memory", MFD_CLOEXEC));
    REQUIRE(::ftruncate(device->descriptor.get(), static_cast<off_t>(device->bytes)) == 0);
    device->base = static_cast<std::byte*>(
        ::mmap(nullptr, device->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, device->descriptor.get(), 0));
    REQUIRE(device->base != MAP_FAILED);
    std::memcpy(device->base, base + plan.buffers_offset, layout::device_bytes(plan));
    std::ranges::copy(gpu, device->offer.uuid);
    device->offer.bytes = device->bytes;
    header().buffers_in = static_cast<std::uint64_t>(layout::BuffersIn::device);
  }

  void unmap() {
    if (device && device->base != nullptr) ::munmap(std::exchange(device->base, nullptr), device->bytes);
    if (base != nullptr) ::munmap(std::exchange(base, nullptr), plan.total_bytes);
  }

  void seal(int seals = F_SEAL_SHRINK | F_SEAL_GROW) { REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0); }

  [[nodiscard]] layout::Header& header() const { return *reinterpret_cast<layout::Header*>(base); }
  [[nodiscard]] layout::TensorEntry& tensor(std::size_t i) const {
    return reinterpret_cast<layout::TensorEntry*>(base + plan.tensors_offset)[i];
  }
  [[nodiscard]] layout::FragmentEntry& fragment(std::size_t f) const {
    return reinterpret_cast<layout::FragmentEntry*>(base + plan.fragments_offset)[f];
  }
  [[nodiscard]] float* buffer(std::uint32_t f, std::uint8_t index) const {
    if (device) return reinterpret_cast<float*>(device->base + layout::device_offset(plan, f, index));
    return reinterpret_cast<float*>(base + layout::buffer_offset(plan, f, index));
  }

  layout::Plan plan;
  FileDescriptor fd;
  std::byte* base = nullptr;
  mutable std::shared_ptr<void> kept;  ///< what the client keeps for the node, in tests that act as a daemon

  struct Device {
    FileDescriptor descriptor;
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    layout::DeviceOffer offer{};
  };
  std::optional<Device> device;
};

inline FileDescriptor connect_to(const std::string& path, int type) {
  FileDescriptor fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const auto address = layout::socket_address(path);
  REQUIRE(address);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0);
  return fd;
}

inline layout::AttachRequest attach_request(std::uint64_t memory_bytes) {
  return {layout::attach_magic, layout::attach_version, 0, memory_bytes, static_cast<std::uint64_t>(::getpid())};
}

/// Sends `size_bytes` from `data` with these descriptors, as one datagram.
inline void send_datagram(int socket, const void* data, std::size_t size_bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<void*>(data), size_bytes};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  REQUIRE(::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size_bytes));
}

}  // namespace gossamer::daemon::test
