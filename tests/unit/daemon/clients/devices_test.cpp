// Clients whose buffers are in a GPU's memory, at the daemon's socket. The memory is mapped when they attach and given
// back when they go, and a refusal says what to do. The GPUs are fake (tests/unit/daemon/device/fake_cuda_plugin.cpp),
// and only their own calls can touch their memory.

#include "daemon/clients/devices.hpp"

#include "tests/unit/daemon/clients/listening.hpp"
#include "tests/unit/daemon/device/fake_gpus.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using device::fake::fake_counts;
using device::fake::FakeGpus;
using device::fake::uuid_of;
using layout::AttachStatus;
using test::Client;
using test::Listening;
using test::status;
using namespace std::chrono_literals;

namespace {

DevicesOptions with_fake_gpus() {
  return {.plugin = GOSSAMER_FAKE_PLUGIN, .retry = 0ms};
}

/// A client whose buffers are in the memory of a GPU.
struct DeviceClient : Client {
  explicit DeviceClient(const Listening& daemon, int gpu = 0) : Client(daemon) { memory.move_to_device(uuid_of(gpu)); }
};

/// Its reply is this refusal.
void check_refused(const layout::AttachReply& reply, AttachStatus expected, const std::string& text) {
  CHECK(status(reply) == expected);
  CHECK_THAT(std::string(reply.message), Contains(text));
}

}  // namespace

TEST_CASE("a client's GPU memory is mapped while it is attached") {
  const FakeGpus gpus;
  Listening daemon({}, with_fake_gpus());
  const std::size_t descriptors = test::open_descriptors();
  {
    DeviceClient client(daemon);
    client.memory.buffer(1, 2)[5] = 7;
    client.ask();
    // Opening a GPU takes time. Neither the loop nor the client waits for it.
    CHECK(status(daemon.reply(client.socket)) == AttachStatus::device_opening);
    CHECK(daemon.closed(client.socket));
    CHECK(status(client.attach(daemon)) == AttachStatus::accepted);
    REQUIRE(daemon.events.sessions.size() == 1);
    {
      const ClientMemory& memory = daemon.events.sessions[0]->memory();
      CHECK(memory.on_device());
      CHECK(memory.gpu() == "GPU-a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a500");
      CHECK(memory.device().name() == "fake GPU 0");
      float read = 0;
      CHECK(memory.device().download({&read, 1}, memory.buffer(1, 2) + 5));
      CHECK(read == 7);
      CHECK(memory.most_bytes() == client.memory.plan.buffers_offset);
      CHECK(memory.device_bytes() == layout::device_bytes(client.memory.plan));
    }
    CHECK(daemon.listener->memory_bytes() == client.memory.plan.buffers_offset);
    CHECK(daemon.devices->mapped_bytes() == client.memory.device->bytes);
    CHECK(fake_counts().mappings == 1);
    CHECK(daemon.listener->refused() == 0);
    client.socket.reset();
    CHECK(test::run_until(daemon.loop, [&] { return daemon.events.sessions.empty(); }));
  }
  CHECK(test::run_until(daemon.loop, [&] { return fake_counts().mappings == 0; }));
  CHECK(daemon.devices->mapped_bytes() == 0);
  CHECK(test::open_descriptors() == descriptors);
  CHECK_THAT(daemon.log.text.str(), Contains("GPU-a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a500 (fake GPU 0) is open"));
}

TEST_CASE("GPU memory that cannot be worked in is refused, with why") {
  const FakeGpus gpus;
  DevicesOptions options = with_fake_gpus();
  options.retry = 1h;
  std::string lines;
  int gpu = 0;
  const char* expected = nullptr;
  SECTION("not wanted") {
    options.enabled = false;
    expected = "[gpus] clients = false";
  }
  SECTION("no plug-in") {
    options.plugin = "/nowhere/libgossamer_cuda.so";
    expected = "gossamer-cuda";
  }
  SECTION("no driver") {
    lines = "no driver";
    expected = "there is no driver";
  }
  SECTION("no GPU") {
    lines = "gpus 0";
    expected = "gossamerd sees no GPU-a5a5";
  }
  SECTION("another GPU") {
    gpu = 7;
    expected = "a5a5a5a5a507: let its unit use the GPUs";
  }
  SECTION("it cannot be opened") {
    lines = "open fails";
    expected = "it cannot be opened";
  }
  SECTION("it cannot be mapped") {
    lines = "import fails";
    expected = "importing is not permitted";
  }
  gpus.be(lines);
  Listening daemon({}, options);
  const std::size_t descriptors = test::open_descriptors();
  {
    DeviceClient client(daemon, gpu);
    check_refused(client.attach(daemon), AttachStatus::no_device, expected);
    CHECK(daemon.closed(client.socket));
  }
  CHECK(daemon.events.sessions.empty());
  CHECK(daemon.listener->refused() == 1);
  CHECK_THAT(daemon.log.text.str(), Contains(expected));
  CHECK(test::open_descriptors() <= descriptors + 1);  // the plug-in's counts may have been asked for
  CHECK((lines != "import fails" || fake_counts().mappings == 0));
}

TEST_CASE("a daemon without GPUs says so") {
  Listening daemon;
  DeviceClient client(daemon);
  check_refused(client.attach(daemon), AttachStatus::no_device, "does not work in the memory of GPUs");
}

TEST_CASE("a GPU that was missing is found later") {
  const FakeGpus gpus;
  Listening daemon({}, with_fake_gpus());
  gpus.be("gpus 1");
  DeviceClient client(daemon, 1);
  client.ask();
  CHECK(status(daemon.reply(client.socket)) == AttachStatus::device_opening);
  gpus.be("gpus 2");
  CHECK(status(client.attach(daemon)) == AttachStatus::accepted);
}

TEST_CASE("an NCCL that is named and cannot be loaded is told, and GPUs are used all the same") {
  const FakeGpus gpus;
  DevicesOptions options = with_fake_gpus();
  options.nccl = "/nowhere/libnccl.so.2";
  Listening daemon({}, options);
  DeviceClient client(daemon);
  CHECK(status(client.attach(daemon)) == AttachStatus::accepted);
  CHECK_THAT(daemon.log.text.str(), Contains("[gpus] nccl cannot be loaded: /nowhere/libnccl.so.2"));
}

TEST_CASE("an offer of GPU memory that does not fit the request is refused, and nothing leaks") {
  const FakeGpus gpus;
  Listening daemon({}, with_fake_gpus());
  const std::size_t descriptors = test::open_descriptors();
  {
    Client on_host(daemon);
    DeviceClient on_device(daemon);
    const int wake = on_host.wake.get();
    const int device = on_device.memory.device->descriptor.get();
    layout::AttachRequest request = test::attach_request(on_device.memory.plan.total_bytes);
    const layout::DeviceOffer offer = on_device.memory.device->offer;
    const auto datagram = [&](std::uint32_t flags, const layout::DeviceOffer* with, std::size_t cut = 0) {
      request.flags = flags;
      std::string bytes(reinterpret_cast<const char*>(&request), sizeof request);
      if (with != nullptr) bytes.append(reinterpret_cast<const char*>(with), sizeof *with);
      return bytes.substr(0, bytes.size() - cut);
    };
    layout::DeviceOffer small = offer;
    small.bytes = layout::device_bytes(on_device.memory.plan) - 1;
    layout::DeviceOffer exaggerated = offer;
    exaggerated.bytes = offer.bytes * 2;
    layout::DeviceOffer uneven = offer;
    uneven.bytes = offer.bytes + 1;
    const int memory = on_device.memory.fd.get();
    const struct {
      const char* what;
      std::string bytes;
      std::vector<int> sent;
      AttachStatus expected;
      const char* text;
    } cases[] = {
        {"no offer", datagram(2, nullptr), {memory, wake, device}, AttachStatus::version_differs, "has 56 bytes"},
        {"half an offer",
         datagram(2, &offer, 3),
         {memory, wake, device},
         AttachStatus::version_differs,
         "this one has 53"},
        {"no flag", datagram(0, &offer), {memory, wake, device}, AttachStatus::version_differs, "has 32 bytes"},
        {"no memory", datagram(2, &offer), {memory, wake}, AttachStatus::bad_layout, "3 descriptors"},
        {"too much", datagram(2, &offer), {memory, wake, device, device}, AttachStatus::bad_layout, "4 came"},
        {"in another order", datagram(2, &offer), {memory, device, wake}, AttachStatus::bad_layout, "not an eventfd"},
        {"of buffers in the host's memory",
         datagram(2, &offer),
         {on_host.memory.fd.get(), wake, device},
         AttachStatus::bad_layout,
         "no buffers are there"},
        {"none of buffers in a GPU's",
         datagram(0, nullptr),
         {memory, wake},
         AttachStatus::bad_layout,
         "which was not offered"},
        {"too small", datagram(2, &small), {memory, wake, device}, AttachStatus::bad_layout, "the buffers need"},
        {"larger than it is", datagram(2, &exaggerated), {memory, wake, device}, AttachStatus::no_device, "smaller"},
        {"no pages", datagram(2, &uneven), {memory, wake, device}, AttachStatus::no_device, "whole pages"},
        {"no GPU memory", datagram(2, &offer), {memory, wake, wake}, AttachStatus::no_device, "no GPU memory"},
    };
    for (const auto& [what, bytes, sent, expected, text] : cases) {
      CAPTURE(what);
      layout::AttachReply reply{};
      do {
        const FileDescriptor socket = daemon.connect();
        test::send_datagram(socket.get(), bytes.data(), bytes.size(), sent);
        reply = daemon.reply(socket);
        CHECK(daemon.closed(socket));
      } while (status(reply) == AttachStatus::device_opening);
      check_refused(reply, expected, text);
    }
    on_device.memory.header().window_bytes = layout::fragment_bytes(on_device.memory.plan);
    check_refused(on_device.attach(daemon), AttachStatus::bad_layout, "window_bytes");
    on_device.memory.header().window_bytes = 0;
    on_device.memory.header().buffers_in = 2;
    check_refused(on_device.attach(daemon), AttachStatus::bad_layout, "buffers_in is 2");
  }
  CHECK(test::run_until(daemon.loop, [&] { return daemon.listener->pending() == 0; }));
  CHECK(daemon.events.sessions.empty());
  CHECK(fake_counts().mappings == 0);
  CHECK(test::open_descriptors() == descriptors);
}

TEST_CASE("a driver that hangs holds up nobody else, and its clients only for a while") {
  const FakeGpus gpus;
  ClientListenerOptions options;
  options.device_timeout = 50ms;
  DevicesOptions devices = with_fake_gpus();
  devices.open_patience = 100ms;
  Listening daemon(options, devices);
  DeviceClient client(daemon);
  SECTION("in opening") {
    gpus.be("open hangs");
    check_refused(client.attach(daemon), AttachStatus::no_device, "does not answer");
  }
  SECTION("in mapping") {
    CHECK(status(client.attach(daemon)) == AttachStatus::accepted);
    gpus.be("import hangs");
    DeviceClient second(daemon);
    check_refused(second.attach(daemon), AttachStatus::no_device, "does not answer");
  }
  Client on_host(daemon);
  on_host.ask();
  CHECK(status(daemon.reply(on_host.socket)) == AttachStatus::accepted);
  const std::uint64_t expected = daemon.devices->mapped_bytes() == 0 ? 0 : 1;
  gpus.be("");
  // A mapping that comes too late is given back.
  DeviceClient last(daemon);
  CHECK(test::run_until(daemon.loop, [&] { return status(last.attach(daemon)) == AttachStatus::accepted; }));
  CHECK(test::run_until(daemon.loop, [&] { return fake_counts().mappings == expected + 1; }));
}

TEST_CASE("the end of the daemon does not wait for a driver that hangs") {
  const FakeGpus gpus;
  {
    DevicesOptions devices = with_fake_gpus();
    devices.stop_patience = 10ms;
    Listening daemon({}, devices);
    DeviceClient client(daemon);
    gpus.be("open hangs");
    client.ask();
    CHECK(status(daemon.reply(client.socket)) == AttachStatus::device_opening);
  }
  gpus.be("");
}

TEST_CASE("a client in host memory is pinned for the GPU that its job is averaged on") {
  const FakeGpus gpus;
  Listening daemon({}, with_fake_gpus());
  DeviceClient first(daemon);
  REQUIRE(status(first.attach(daemon)) == AttachStatus::accepted);
  daemon.events.home = &daemon.events.sessions[0]->memory().device();
  Client second(daemon);
  second.memory.buffer(0, 1)[3] = 5;
  gpus.be("pin fails");
  check_refused(second.attach(daemon), AttachStatus::limit_reached, "cannot be pinned");
  gpus.be("");
  REQUIRE(status(second.attach(daemon)) == AttachStatus::accepted);
  {
    const ClientMemory& memory = daemon.events.sessions[1]->memory();
    CHECK_FALSE(memory.on_device());
    CHECK(memory.gpu().empty());
    CHECK(&memory.device() == &gossip::processor());
    CHECK(memory.reached_by(*daemon.events.home));
    float read = 0;
    CHECK(daemon.events.home->download({&read, 1}, memory.buffer(0, 1) + 3));
    CHECK(read == 5);
  }
  CHECK(fake_counts().pinned == 1);
  second.socket.reset();
  CHECK(test::run_until(daemon.loop, [&] { return fake_counts().pinned == 0; }));
}

TEST_CASE("a GPU without room is said once, with what to do, and host memory that stood in goes back") {
  const FakeGpus gpus;
  DevicesOptions options = with_fake_gpus();
  options.overflow_look = 0ms;
  options.overflow_bytes = 8 << 20;
  Listening daemon({}, options);
  DeviceClient client(daemon);
  REQUIRE(status(client.attach(daemon)) == AttachStatus::accepted);
  const gossip::Device& gpu = daemon.events.sessions[0]->memory().device();
  const auto said = [&](const std::string& text) {
    const std::string all = daemon.log.text.str();
    std::size_t count = 0;
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1))
      ++count;
    return count;
  };
  daemon.devices->look_at_overflow();
  CHECK(said("has no room") == 0);
  gpus.be("no memory");
  constexpr std::size_t mebibyte = (1 << 20) / sizeof(float);
  {
    const auto array = gpu.allocate(mebibyte);
    REQUIRE(array != nullptr);
    CHECK(daemon.devices->overflow_bytes() == 1 << 20);
  }
  // Host memory that was in use only for a moment is reported, too, and only once while the shortage lasts.
  for (int time = 0; time < 3; ++time) {
    daemon.devices->look_at_overflow();
    CHECK(gpu.allocate(mebibyte) != nullptr);
  }
  CHECK(said("fake GPU 0) has no room: 1.0 MiB of what gossamerd keeps there") == 1);
  CHECK(said("set_per_process_memory_fraction") == 1);
  CHECK(gpu.allocate(8 * mebibyte) == nullptr);
  CHECK(gpu.allocate(8 * mebibyte) == nullptr);
  daemon.devices->look_at_overflow();
  CHECK(said("host memory cannot stand in for it: all host memory that may") == 1);
  CHECK(fake_counts().pinned == 1);
  gpus.be("");
  CHECK(test::run_until(daemon.loop, [&] {
    daemon.devices->look_at_overflow();
    return fake_counts().pinned == 0;
  }));
  CHECK(said("has room again") == 1);
  CHECK(gpu.allocate(mebibyte) != nullptr);
  CHECK(daemon.devices->overflow_bytes() == 0);
}

TEST_CASE("a GPU that fails is given up, and said once") {
  const FakeGpus gpus;
  gpus.be("gpus 2");
  Listening daemon({}, with_fake_gpus());
  DeviceClient client(daemon, 0);
  REQUIRE(status(client.attach(daemon)) == AttachStatus::accepted);
  const gossip::Device& gpu = daemon.events.sessions[0]->memory().device();
  CHECK(daemon.devices->failed().empty());
  gpus.be("gpus 2\nwork fails 0");
  float value = 0;
  CHECK_FALSE(gpu.download({&value, 1}, daemon.events.sessions[0]->memory().buffer(0, 0)));
  CHECK(daemon.devices->failed() == std::vector<const gossip::Device*>{&gpu});
  CHECK(daemon.devices->failed().empty());
  CHECK_THAT(daemon.log.text.str(), Contains("has failed: fake: the GPU was lost"));
  gpus.be("gpus 2");
  DeviceClient again(daemon, 0);
  check_refused(again.attach(daemon), AttachStatus::no_device, "the GPU has failed");
  DeviceClient elsewhere(daemon, 1);
  CHECK(status(elsewhere.attach(daemon)) == AttachStatus::accepted);
}
