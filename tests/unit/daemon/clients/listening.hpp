// A client socket for tests, a recorder of what the daemon tells of it, and clients with a valid model.

#pragma once

#include <array>
#include <optional>

#include "daemon/clients/client_listener.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

namespace gossamer::daemon::test {

/// Takes clients as the node would, or refuses them, and remembers what it was told.
struct Recorder : ClientEvents {
  std::expected<void, AttachRefusal> attach(std::shared_ptr<ClientSession> session) override {
    if (refusal) return std::unexpected(*refusal);
    if (to_keep) session->keep(to_keep);
    sessions.push_back(std::move(session));
    return {};
  }
  const gossip::Device* home_of(const ClientMemory&) const override { return home; }
  void woken(ClientSession& session) override {
    ++wakes;
    last_woken = session.number();
  }
  void detached(ClientSession& session) override {
    ++detaches;
    std::erase_if(sessions, [&](const auto& held) { return held.get() == &session; });
  }

  std::optional<AttachRefusal> refusal;
  std::vector<std::shared_ptr<ClientSession>> sessions;
  std::shared_ptr<NodeMemory> to_keep;
  const gossip::Device* home = nullptr;
  int wakes = 0;
  int detaches = 0;
  std::uint64_t last_woken = 0;
};

struct Listening {
  /// Without `with`, the daemon knows of no GPUs.
  explicit Listening(ClientListenerOptions options = {}, std::optional<DevicesOptions> with = std::nullopt) {
    if (with) devices = std::make_unique<Devices>(loop, *with, log.logger);
    options.devices = devices.get();
    options.socket = path;
    options.node.bytes[0] = 42;
    auto opened = ClientListener::open(loop, options, events, log.logger);
    REQUIRE(opened);
    listener = std::move(*opened);
  }

  [[nodiscard]] FileDescriptor connect() const { return connect_to(path, SOCK_SEQPACKET); }

  /// Turns the loop until the daemon's reply has come at a client's socket.
  [[nodiscard]] layout::AttachReply reply(const FileDescriptor& socket) {
    layout::AttachReply reply{};
    ssize_t got = -1;
    REQUIRE(run_until(loop, [&] {
      got = ::recv(socket.get(), &reply, sizeof reply, MSG_DONTWAIT);
      return got >= 0;
    }));
    REQUIRE(got == sizeof reply);
    CHECK(reply.magic == layout::attach_magic);
    CHECK(reply.version == layout::attach_version);
    CHECK(reply.message[sizeof reply.message - 1] == 0);
    return reply;
  }

  /// Whether the daemon has closed this connection.
  [[nodiscard]] bool closed(const FileDescriptor& socket) {
    return run_until(loop, [&] {
      char byte = 0;
      const ssize_t got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno != EAGAIN);
    });
  }

  TemporaryFolder folder;
  std::string path = (folder.path() / layout::client_socket_name).string();
  asio::io_context loop;
  TestLog log;
  std::unique_ptr<Devices> devices;
  Recorder events;
  std::shared_ptr<ClientListener> listener;
};

/// A client with a valid model.
struct Client {
  explicit Client(const Listening& daemon) : socket(daemon.connect()), wake(::eventfd(0, EFD_CLOEXEC)) {
    memory.seal();
  }
  void ask(std::uint32_t flags = 0) {
    layout::AttachRequest request = attach_request(memory.plan.total_bytes);
    request.flags = flags;
    if (!memory.device) {
      return send_datagram(socket.get(), &request, sizeof request, {memory.fd.get(), wake.get()});
    }
    request.flags |= layout::attach_device;
    std::array<std::byte, sizeof request + sizeof memory.device->offer> bytes;
    std::memcpy(bytes.data(), &request, sizeof request);
    std::memcpy(bytes.data() + sizeof request, &memory.device->offer, sizeof memory.device->offer);
    send_datagram(socket.get(), bytes.data(), bytes.size(),
                  {memory.fd.get(), wake.get(), memory.device->descriptor.get()});
  }
  /// Attaches, and asks again as long as the daemon says that a GPU is being opened. Returns the reply after that.
  [[nodiscard]] layout::AttachReply attach(Listening& daemon, std::uint32_t flags = 0) {
    layout::AttachReply reply{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    do {
      REQUIRE(std::chrono::steady_clock::now() < end);
      socket = daemon.connect();
      ask(flags);
      reply = daemon.reply(socket);
    } while (reply.status == static_cast<std::uint32_t>(layout::AttachStatus::device_opening));
    return reply;
  }
  void ring() {
    const std::uint64_t one = 1;
    REQUIRE(::write(wake.get(), &one, sizeof one) == sizeof one);
  }

  TestMemory memory;
  FileDescriptor socket;
  FileDescriptor wake;
};

inline layout::AttachStatus status(const layout::AttachReply& reply) {
  return static_cast<layout::AttachStatus>(reply.status);
}

}  // namespace gossamer::daemon::test
