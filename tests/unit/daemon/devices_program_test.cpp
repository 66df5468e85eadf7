// gossamerd with clients whose buffers are in the memory of GPUs, which are fake: what people are shown, a GPU that
// fails, a daemon that is killed and started again, and that nothing is left when it ends.

#include <poll.h>

#include <nlohmann/json.hpp>

#include "tests/unit/daemon/jobs/played_job.hpp"
#include "tests/unit/daemon/program.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using device::fake::FakeGpus;
using layout::AttachStatus;
using test::Place;
using test::Program;
using test::Trainer;
using namespace std::chrono_literals;

namespace {

constexpr auto patience = 30s;

template <class Condition>
[[nodiscard]] bool comes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

/// A trainer's connection to a daemon.
class Attachment {
 public:
  explicit Attachment(Trainer& trainer)
      : trainer_(trainer), memory_(trainer.memory()), wake_(::eventfd(0, EFD_CLOEXEC)) {
    trainer.wake = wake_.get();
  }
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment() { trainer_.stop(); }  // a trainer that runs would ring the eventfd

  /// Asks until it is told something other than that a GPU is being opened.
  [[nodiscard]] layout::AttachReply attach(const std::string& path, std::uint32_t flags = 0) {
    layout::AttachReply reply{};
    const bool answered = comes_true([&] {
      socket_ = test::connect_to(path, SOCK_SEQPACKET);
      ask(flags);
      reply = {};
      pollfd wait{socket_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 10'000) == 1) (void)::recv(socket_.get(), &reply, sizeof reply, 0);
      return reply.magic == layout::attach_magic && status(reply) != AttachStatus::device_opening;
    });
    CHECK(answered);
    return reply;
  }
  /// Whether the daemon ends the session.
  [[nodiscard]] bool is_let_go() const {
    pollfd wait{socket_.get(), POLLIN, 0};
    char byte = 0;
    return ::poll(&wait, 1, 10'000) == 1 && ::recv(socket_.get(), &byte, 1, 0) == 0;
  }
  [[nodiscard]] static AttachStatus status(const layout::AttachReply& reply) {
    return static_cast<AttachStatus>(reply.status);
  }

 private:
  void ask(std::uint32_t flags) const {
    layout::AttachRequest request = test::attach_request(memory_.plan.total_bytes);
    request.flags = flags;
    std::string bytes;
    std::vector<int> descriptors{memory_.fd.get(), wake_.get()};
    if (memory_.device) {
      request.flags |= layout::attach_device;
      bytes.assign(reinterpret_cast<const char*>(&memory_.device->offer), sizeof memory_.device->offer);
      descriptors.push_back(memory_.device->descriptor.get());
    }
    bytes.insert(0, reinterpret_cast<const char*>(&request), sizeof request);
    test::send_datagram(socket_.get(), bytes.data(), bytes.size(), descriptors);
  }

  Trainer& trainer_;
  const test::TestMemory& memory_;
  FileDescriptor wake_;
  FileDescriptor socket_;
};

/// The files of a daemon that works in the memory of fake GPUs. The daemon writes at its end what is left of them.
struct GpuPlace : Place {
  GpuPlace() {
    test::write_file(config, test::config_text(folder.path(), "[gpus]\nlibrary = \"\"\nplugin = \"" +
                                                                  std::string(GOSSAMER_FAKE_PLUGIN) + "\"\n"));
    ::setenv(device::fake::counts_variable, counts.c_str(), 1);
  }
  GpuPlace(const GpuPlace&) = delete;
  GpuPlace& operator=(const GpuPlace&) = delete;
  ~GpuPlace() { ::unsetenv(device::fake::counts_variable); }

  [[nodiscard]] Program start() const { return daemon({"--config", config}); }
  [[nodiscard]] nlohmann::json ask(const std::string& command) const {
    Program program = ctl({command, "--json", "--socket", control});
    CHECK(program.exit_status() == 0);
    return nlohmann::json::parse(program.output());
  }
  void check_nothing_is_left() const {
    CHECK_THAT(test::read_file(counts), Contains("contexts 0\nallocations 0\nmappings 0\npinned 0\n"));
  }

  std::string counts = folder.file("counts");
  std::string clients = folder.file("sockets/client.sock");
  FakeGpus gpus;
};

}  // namespace

TEST_CASE("a daemon shows who is on a GPU, and gives a GPU up that fails: its clients go on in host memory") {
  GpuPlace place;
  Program daemon = place.start();
  REQUIRE(daemon.says("runs as node"));
  Trainer on_gpu(2, std::chrono::microseconds(100), 0);
  Trainer on_host(2, std::chrono::microseconds(100));
  on_gpu.may_train = on_host.may_train = false;
  Attachment first(on_gpu);
  Attachment second(on_host);
  REQUIRE(Attachment::status(first.attach(place.clients)) == AttachStatus::accepted);
  on_gpu.start();
  REQUIRE(comes_true([&] { return on_gpu.running(); }));
  REQUIRE(Attachment::status(second.attach(place.clients)) == AttachStatus::accepted);
  on_host.start();
  REQUIRE(comes_true([&] { return on_host.running(); }));

  const nlohmann::json clients = place.ask("clients").at("clients");
  REQUIRE(clients.size() == 2);
  CHECK(clients[0].at("buffers") == "GPU-a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a500");
  CHECK(clients[1].at("buffers") == "host");
  CHECK(place.ask("status").at("node").at("device_memory_bytes") == on_gpu.memory().device->bytes);
  CHECK(place.ask("status").at("node").at("device_overflow_bytes") == 0);

  place.gpus.be("work fails");
  on_gpu.may_train = on_host.may_train = true;  // the next round of the two clients finds the fault
  CHECK(daemon.says("has failed: fake: the GPU was lost"));
  CHECK(first.is_let_go());
  CHECK(second.is_let_go());
  place.gpus.be("");
  const layout::AttachReply refused = first.attach(place.clients, layout::attach_resume);
  CHECK(Attachment::status(refused) == AttachStatus::no_device);
  CHECK_THAT(std::string(refused.message), Contains("the GPU has failed"));
  layout::AttachReply taken{};
  CHECK(comes_true([&] {
    taken = second.attach(place.clients, layout::attach_resume);
    return Attachment::status(taken) != AttachStatus::job_busy;
  }));
  CHECK(Attachment::status(taken) == AttachStatus::accepted);
  daemon.signal(SIGTERM);
  CHECK(daemon.exit_status() == 0);
  place.check_nothing_is_left();
}

TEST_CASE("a daemon beside a GPU that hangs goes on answering, and ends when it is told to") {
  GpuPlace place;
  Program daemon = place.start();
  REQUIRE(daemon.says("runs as node"));
  Trainer one(2, std::chrono::microseconds(100), 0);
  Trainer other(2, std::chrono::microseconds(100), 0);
  one.may_train = other.may_train = false;
  Attachment first(one);
  Attachment second(other);
  REQUIRE(Attachment::status(first.attach(place.clients)) == AttachStatus::accepted);
  one.start();
  REQUIRE(comes_true([&] { return one.running(); }));
  REQUIRE(Attachment::status(second.attach(place.clients)) == AttachStatus::accepted);
  other.start();
  REQUIRE(comes_true([&] { return other.running(); }));
  place.gpus.be("work hangs");
  one.may_train = other.may_train = true;
  REQUIRE(comes_true([&] { return std::filesystem::exists(place.gpus.file() + device::fake::hanging_suffix); }));
  CHECK(place.ask("clients").at("clients").size() == 2);
  daemon.signal(SIGTERM);
  CHECK(daemon.exit_status() == 0);
  CHECK_THAT(daemon.errors(), Contains("a GPU does not answer"));
  place.gpus.be("");
}

TEST_CASE("a daemon that is killed leaves the model in the GPU's memory to the next one") {
  GpuPlace place;
  Trainer trainer(2, std::chrono::microseconds(100), 0);
  trainer.may_train = false;
  Attachment attachment(trainer);
  {
    Program killed = place.start();
    REQUIRE(killed.says("runs as node"));
    REQUIRE(Attachment::status(attachment.attach(place.clients)) == AttachStatus::accepted);
    trainer.start();
    REQUIRE(comes_true([&] { return trainer.running(); }));
    killed.signal(SIGKILL);
    CHECK(killed.exit_status() == -1);
  }
  CHECK(attachment.is_let_go());
  Program next = place.start();
  REQUIRE(next.says("runs as node"));
  REQUIRE(Attachment::status(attachment.attach(place.clients, layout::attach_resume)) == AttachStatus::accepted);
  CHECK(next.says("is back"));
  const auto fragments = trainer.memory().plan.fragment_count;
  Program saved = place.ctl({"checkpoint", "digits", "--socket", place.control});
  CHECK(saved.exit_status() == 0);  // it has read the whole model from the GPU
  for (std::uint32_t f = 0; f < fragments; ++f) {
    const auto word = layout::Word::unpack(trainer.memory().fragment(f).word.load());
    CHECK(trainer.memory().buffer(f, word.publication)[0] == 2);
  }
  next.signal(SIGTERM);
  CHECK(next.exit_status() == 0);
  place.check_nothing_is_left();
}
