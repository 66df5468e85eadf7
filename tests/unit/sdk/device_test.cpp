// Runs whose tensors are on a fake GPU (fake_client_plugin.hpp): a step launches work and never waits, the daemon is
// told when the device is done, fragments go through the right memory, and refusals and failures are handled.

#include <gossamer.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <gossamer.hpp>
#include <new>
#include <numeric>

#include "catch.hpp"
#include "tests/unit/sdk/contract_daemon.hpp"
#include "tests/unit/sdk/fake_client_plugin.hpp"

using namespace gossamer;
using gossamer::test::ContractClient;
using gossamer::test::ContractDaemon;
using gossamer::test::eventually;

namespace {

/// The fake GPU in its initial state, which the test's end restores.
class Gpu {
 public:
  Gpu() {
    setenv("GOSSAMER_CLIENT_CUDA_PLUGIN", GOSSAMER_FAKE_PLUGIN, 1);
    reset();
    holdings_ = FAKE(fake_, fake_holdings)();
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    reset();
    unsetenv("GOSSAMER_CLIENT_CUDA_PLUGIN");
  }
  void reset() {
    FAKE(fake_, fake_refuse_share)(0);
    FAKE(fake_, fake_refuse_pin)(0);
    FAKE(fake_, fake_be_busy)(0);
    FAKE(fake_, fake_repair)();
    release();
  }
  [[nodiscard]] void* allocate(std::size_t bytes, int device = 0) { return FAKE(fake_, fake_allocate)(device, bytes); }
  void free(void* memory) { FAKE(fake_, fake_free)(memory); }
  [[nodiscard]] void* stream() { return FAKE(fake_, fake_stream)(); }
  void hold(void* stream = nullptr) { FAKE(fake_, fake_hold)(stream); }
  void release(void* stream = nullptr) { FAKE(fake_, fake_release)(stream); }
  void synchronize(void* stream = nullptr) { FAKE(fake_, fake_synchronize)(stream); }
  /// Enqueues work, such as training. `work` must live until the stream has done it.
  void enqueue(std::function<void()>& work, void* stream = nullptr) {
    FAKE(fake_, fake_enqueue)
    (
        stream, [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); }, &work);
  }
  [[nodiscard]] std::uint64_t launches() { return FAKE(fake_, fake_launches)(); }
  void refuse_share() { FAKE(fake_, fake_refuse_share)(1); }
  void refuse_pin() { FAKE(fake_, fake_refuse_pin)(1); }
  void be_busy(bool busy) { FAKE(fake_, fake_be_busy)(busy ? 1 : 0); }
  void fail_after(int launches) { FAKE(fake_, fake_fail_after)(launches); }
  /// How much runs have taken and not given back.
  [[nodiscard]] int held() { return FAKE(fake_, fake_holdings)() - holdings_; }

 private:
  test::FakeGpu fake_{GOSSAMER_FAKE_PLUGIN};
  int holdings_ = 0;
};

/// Values in the fake GPU's memory.
template <class T>
class Values {
 public:
  Values(Gpu& gpu, std::size_t count, int device = 0)
      : gpu_(gpu), values_(static_cast<T*>(gpu.allocate(count * sizeof(T), device)), count) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  ~Values() { gpu_.free(values_.data()); }
  [[nodiscard]] std::span<T> span() const { return values_; }
  T& operator[](std::size_t i) const { return values_[i]; }

 private:
  Gpu& gpu_;
  std::span<T> values_;
};

constexpr std::uint32_t fragments = 7;

/// Tensors that cross fragment borders, in fragments of 256.
struct Model {
  explicit Model(Gpu& gpu) : first(gpu, 700), second(gpu, 1'000), third(gpu, 33) {
    std::iota(first.span().begin(), first.span().end(), 1.0F);
    std::iota(second.span().begin(), second.span().end(), 10'000.5);
    for (std::size_t i = 0; i < 33; ++i)
      third[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(i) - 16) >> 16);
  }
  [[nodiscard]] std::vector<Tensor> tensors() const {
    return {param("first", first.span(), {7, 100}), local("counter", GOSSAMER_I64, {}), param("second", second.span()),
            buffer("third", third.span())};
  }
  [[nodiscard]] std::vector<float> flat() const {
    std::vector<float> all(first.span().begin(), first.span().end());
    all.insert(all.end(), second.span().begin(), second.span().end());
    for (const bfloat16 value : third.span())
      all.push_back(std::bit_cast<float>(std::uint32_t{value.bits} << 16));
    return all;
  }
  Values<float> first;
  Values<double> second;
  Values<bfloat16> third;
};

[[nodiscard]] Run open(const Model& model, const ContractDaemon& daemon, void* stream = nullptr,
                       std::uint64_t step_budget_bytes = 0) {
  return Run({.job = "test",
              .socket_path = daemon.path(),
              .fragment_elements = 256,
              .step_budget_bytes = step_budget_bytes,
              .device = GOSSAMER_CUDA,
              .stream = stream},
             model.tensors());
}

[[nodiscard]] std::unique_ptr<ContractClient> attach(const Run& run, ContractDaemon& daemon) {
  auto client = daemon.accept();
  client->accept();
  if (!eventually([&] { return run.info().attached == 1; })) throw std::runtime_error("the run did not attach");
  return client;
}

[[nodiscard]] std::vector<float> publications(const ContractClient& client) {
  std::vector<float> all;
  for (std::uint32_t f = 0; f < client.header().fragment_count; ++f) {
    const auto snapshot = client.publication(f);
    all.insert(all.end(), snapshot.begin(), snapshot.end());
  }
  all.resize(client.header().elements);
  return all;
}

/// The result of opening a run.
struct Outcome {
  gossamer_status status = GOSSAMER_OK;
  std::string message;
};
[[nodiscard]] Outcome outcome_of(const std::vector<Tensor>& tensors, gossamer_memory memory = GOSSAMER_MEMORY_AUTO) {
  const Options options{.job = "test", .socket_path = "/nonexistent/socket", .memory = memory, .device = GOSSAMER_CUDA};
  try {
    const Run run(options, tensors);
    return {};
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
}
[[nodiscard]] bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

[[nodiscard]] std::uint64_t taken_bytes(const ContractClient& client) {
  struct stat file {};
  REQUIRE(fstat(client.memory_file(), &file) == 0);
  return static_cast<std::uint64_t>(file.st_blocks) * 512;
}

}  // namespace

TEST_CASE("a model on a GPU is published in the GPU's memory, of which the daemon gets a descriptor") {
  Gpu gpu;
  Model model(gpu);
  {
    ContractDaemon daemon;
    const Run run = open(model, daemon);
    CHECK(gpu.launches() > 0);
    const auto client = attach(run, daemon);
    REQUIRE(client->has_device_memory());
    CHECK(client->request.flags == layout::attach_device);
    CHECK(client->device.uuid[0] == 0xa5);
    CHECK(client->device.bytes >= std::uint64_t{fragments} * 3 * 1024);
    CHECK(client->header().buffers_in == static_cast<std::uint64_t>(layout::BuffersIn::device));
    CHECK(client->header().version == layout::version);
    CHECK(client->header().window_bytes == 0);
    CHECK(publications(*client) == model.flat());
    for (std::uint32_t f = 0; f < fragments; ++f)
      CHECK(client->fragment(f).word == layout::Word{.generation = 1}.pack());
    CHECK(taken_bytes(*client) <= client->header().buffers_offset);  // the buffers have no pages in the memfd
    CHECK(run.info().path == GOSSAMER_PATH_DEVICE);
    CHECK(run.info().window_bytes == 0);
    CHECK(std::string(run.info().message).empty());
  }
  CHECK(gpu.held() == 0);
}

TEST_CASE("a step on a GPU launches once and waits for nothing, and the daemon is told when the GPU is done") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  std::vector<float> expected = model.flat();
  (void)client->doorbell_rings();
  for (std::uint32_t f = 0; f < fragments - 1; ++f) {  // the last has bfloat16, which is rounded
    client->make_due(f, std::vector<float>(256, 0.5F + static_cast<float>(f)));
    for (std::uint32_t i = 0; i < 256; ++i)
      expected[f * 256 + i] += 0.5F + static_cast<float>(f);
  }
  client->make_due(fragments - 1);
  client->announce();
  const std::uint64_t launches = gpu.launches();
  gpu.hold();
  run.step(32);
  CHECK(gpu.launches() == launches + 1);
  for (std::uint32_t f = 0; f < fragments; ++f) {
    CHECK(client->word(f).with_client);
    CHECK(client->word(f).generation == 1);
    CHECK(client->fragment(f).publication_clock == 32);
  }
  run.step(32);
  client->announce();  // looked at again while the pass is still running
  run.step(32);
  CHECK(gpu.launches() == launches + 1);
  CHECK(client->doorbell_rings() == 0);

  gpu.release();
  REQUIRE(eventually([&] { return client->doorbell_rings() > 0 || !client->word(fragments - 1).with_client; }));
  REQUIRE(eventually([&] {
    for (std::uint32_t f = 0; f < fragments; ++f) {
      if (client->word(f).with_client) return false;
    }
    return true;
  }));
  gpu.synchronize();  // done already, as the words say; a race checker needs it, because the memory has two addresses
  CHECK(model.flat() == expected);
  CHECK(publications(*client) == expected);
  for (std::uint32_t f = 0; f < fragments; ++f) {
    const layout::Word word = client->word(f);
    CHECK((word.valid() && word.generation == 2 && !word.correction_valid && word.publication != 0));
  }
  CHECK(client->header().publications == fragments);
  CHECK(client->header().clock == 96);
}

TEST_CASE("the daemon is told of a word that a GPU stores although the program makes no call") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  (void)client->doorbell_rings();
  gpu.hold();
  client->make_due(3);
  client->announce();
  run.step(1);
  CHECK(client->doorbell_rings() == 0);
  gpu.release();
  CHECK(eventually([&] { return client->doorbell_rings() == 1; }));
  CHECK_FALSE(client->word(3).with_client);
}

TEST_CASE("a pass comes between the training before it and the training after it") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  void* const stream = gpu.stream();
  Run run = open(model, daemon, stream);
  const auto client = attach(run, daemon);
  gpu.hold(stream);
  std::function<void()> train = [&] { model.first[0] *= 2; };
  model.first[0] = 3;
  client->make_due(0, std::vector<float>(256, 1.0F));
  client->announce();
  gpu.enqueue(train, stream);
  run.step(1);
  gpu.enqueue(train, stream);
  gpu.release(stream);
  gpu.synchronize(stream);
  CHECK(client->publication(0)[0] == 7);
  CHECK(model.first[0] == 14);
}

TEST_CASE("launches go to the stream that was set last") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  void* const first = gpu.stream();
  void* const second = gpu.stream();
  Run run = open(model, daemon, first);
  const auto client = attach(run, daemon);
  gpu.hold(first);
  run.set_stream(second);
  client->make_due(0);
  client->announce();
  run.step(1);
  gpu.synchronize(second);
  CHECK_FALSE(client->word(0).with_client);
  gpu.release(first);
}

TEST_CASE("values are taken over on a GPU, and bfloat16 is rounded as it is on the host") {
  Gpu gpu;
  Values<float> weights(gpu, 256);
  Values<bfloat16> halves(gpu, 4'096);
  ContractDaemon daemon;
  Run run({.job = "test", .socket_path = daemon.path(), .fragment_elements = 256, .device = GOSSAMER_CUDA},
          std::vector<Tensor>{param("weights", weights.span()), param("halves", halves.span())});
  const auto client = attach(run, daemon);
  client->make_due(0, std::vector<float>(256, -2.5F), true);
  for (std::uint32_t f = 1; f < 17; ++f)
    client->make_due(f, std::vector<float>(256, 1.001F), true);
  client->announce();
  run.step(1);
  gpu.synchronize();
  CHECK(std::ranges::all_of(weights.span(), [](float w) { return w == -2.5F; }));
  // Up to 1.0078125 with a probability of 0.128: 524 of 4,096 are expected, with a deviation of 21.
  const auto up = std::ranges::count_if(halves.span(), [](bfloat16 h) { return h.bits == 0x3f81; });
  const auto down = std::ranges::count_if(halves.span(), [](bfloat16 h) { return h.bits == 0x3f80; });
  CHECK(up + down == 4'096);
  CHECK(up > 440);
  CHECK(up < 610);
  CHECK(client->publication(1)[0] == std::bit_cast<float>(std::uint32_t{halves[0].bits} << 16));
}

TEST_CASE("a step on a GPU keeps to its budget, and what there are no tables for stays due") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon, nullptr, 2 * 256 * sizeof(float));
  const auto client = attach(run, daemon);
  for (std::uint32_t f = 0; f < fragments; ++f)
    client->make_due(f);
  client->announce();
  gpu.be_busy(true);
  run.step(1);
  CHECK(client->header().publications == 0);
  gpu.be_busy(false);
  std::vector<std::uint64_t> served;
  for (int step = 0; step < 5; ++step) {
    const std::uint64_t launches = gpu.launches();
    run.step(1);
    served.push_back(client->header().publications);
    CHECK(gpu.launches() == launches + (step < 4 ? 1 : 0));
  }
  CHECK(served == std::vector<std::uint64_t>{2, 4, 6, 7, 7});
  gpu.synchronize();
  for (std::uint32_t f = 0; f < fragments; ++f)
    CHECK_FALSE(client->word(f).with_client);
}

TEST_CASE("the time that a GPU spends on passes counts as time spent serving") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  for (int round = 0; round < 3; ++round) {
    client->make_due(0);
    client->announce();
    run.step(1);
    gpu.synchronize();
  }
  CHECK(run.info().serving_ns >= 2'000'000);  // the fake GPU takes 1 ms each, and the last counts later
}

TEST_CASE("where a GPU's memory cannot be shared, fragments go through pinned host memory") {
  Gpu gpu;
  gpu.refuse_share();
  Model model(gpu);
  {
    ContractDaemon daemon;
    Run run = open(model, daemon);
    const auto client = attach(run, daemon);
    CHECK_FALSE(client->has_device_memory());
    CHECK(client->request.flags == 0);
    CHECK(client->header().buffers_in == 0);
    CHECK(publications(*client) == model.flat());
    CHECK(run.info().path == GOSSAMER_PATH_PINNED);
    CHECK(says(run.info().message, "pinned host memory"));
    CHECK(says(run.info().message, "fake refusal to share"));
    const float before = model.first[5];
    client->make_due(0, std::vector<float>(256, 2.0F));
    client->announce();
    run.step(1);
    gpu.synchronize();
    CHECK(model.first[5] == before + 2);
    CHECK(client->publication(0)[5] == before + 2);
  }
  CHECK(gpu.held() == 0);
}

TEST_CASE("a daemon that cannot work in a GPU's memory is offered pinned host memory") {
  Gpu gpu;
  Model model(gpu);
  {
    ContractDaemon daemon;
    Run run = open(model, daemon);
    {
      const auto refused = daemon.accept();
      CHECK(refused->has_device_memory());
      refused->reply(layout::AttachStatus::no_device, "no plug-in here");
    }
    // Nothing is attached before the program has made a step.
    CHECK_FALSE(daemon.has_caller(300));
    REQUIRE(eventually([&] { return says(run.info().message, "no plug-in here"); }));
    std::unique_ptr<ContractClient> client;
    REQUIRE(eventually([&] {
      run.step(1);
      if (!daemon.has_caller(1)) return false;
      client = daemon.accept();
      return true;
    }));
    CHECK_FALSE(client->has_device_memory());
    CHECK(client->header().buffers_in == 0);
    CHECK(publications(*client) == model.flat());
    client->accept();
    REQUIRE(eventually([&] { return run.info().attached == 1; }));
    CHECK(run.info().path == GOSSAMER_PATH_PINNED);
    CHECK(says(run.info().message, "no plug-in here"));
    CHECK(says(run.info().message, "pinned"));
    client->make_due(1, std::vector<float>(256, 2.0F), true);
    client->announce();
    run.step(1);
    gpu.synchronize();
    CHECK(model.first[300] == 2);
    CHECK(client->publication(1)[44] == 2);
  }
  CHECK(gpu.held() == 0);
}

TEST_CASE("what a daemon left in a GPU's memory is taken along to pinned memory, and nothing is lost") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  std::vector<std::uint64_t> words;
  std::vector<float> spare;
  {
    const auto client = attach(run, daemon);
    // One correction is not yet given to the client, another is, and a third fragment has none. Then the daemon dies.
    client->make_due(0, std::vector<float>(256, 1.5F));
    layout::Word word = client->word(0);
    word.with_client = false;
    client->fragment(0).word = word.pack();
    client->make_due(1, std::vector<float>(256, 0.25F));
    client->make_due(2);
    std::ranges::fill(client->buffer(3, 2), 77.0F);  // the spare, which a mean reads
    for (std::uint32_t f = 0; f < fragments; ++f)
      words.push_back(client->fragment(f).word);
    daemon.die();
  }
  REQUIRE(eventually([&] { return run.info().attached == 0; }));
  daemon.listen();
  {
    const auto refused = daemon.accept();
    CHECK(refused->request.flags == (layout::attach_device | layout::attach_resume));
    refused->reply(layout::AttachStatus::no_device, "the GPU is gone");
  }
  // The program steps only after that. An earlier step would be allowed to serve due fragments.
  REQUIRE(eventually([&] { return says(run.info().message, "the GPU is gone"); }));
  std::unique_ptr<ContractClient> client;
  const std::vector<float> before = model.flat();
  gpu.hold();  // fragments served after the move stay due, and can be checked
  REQUIRE(eventually([&] {
    run.step(1);
    if (!daemon.has_caller(1)) return false;
    client = daemon.accept();
    return true;
  }));
  CHECK(client->request.flags == layout::attach_resume);
  for (std::uint32_t f = 0; f < fragments; ++f) {
    layout::Word word = client->word(f);
    word.serving = false;  // the pass waits for the GPU
    CHECK(word.pack() == words[f]);
  }
  CHECK(client->buffer(0, client->word(0).correction)[9] == 1.5F);
  CHECK(client->buffer(1, client->word(1).correction)[9] == 0.25F);
  CHECK(client->buffer(3, 2)[9] == 77.0F);
  CHECK(publications(*client) == before);
  client->accept();
  REQUIRE(eventually([&] { return run.info().attached == 1; }));
  run.step(1);
  gpu.release();
  gpu.synchronize();
  CHECK(model.first[256] == before[256] + 0.25F);
  CHECK(model.first[0] == before[0]);
  CHECK(client->publication(1)[0] == before[256] + 0.25F);
  CHECK_FALSE(client->word(2).with_client);
}

TEST_CASE("the move to pinned memory waits until nothing is under way") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const float before = model.first[0];
  {
    const auto client = attach(run, daemon);
    client->make_due(0, std::vector<float>(256, 1.0F));
    client->announce();
    gpu.hold();
    run.step(1);
    daemon.die();
  }
  REQUIRE(eventually([&] { return run.info().attached == 0; }));
  daemon.listen();
  daemon.accept()->reply(layout::AttachStatus::no_device, "no");
  REQUIRE(eventually([&] { return says(run.info().message, "pinned"); }));
  for (int step = 0; step < 50; ++step)
    run.step(1);
  CHECK(run.info().path == GOSSAMER_PATH_DEVICE);
  CHECK_FALSE(daemon.has_caller(0));
  gpu.release();
  REQUIRE(eventually([&] {
    run.step(1);
    return daemon.has_caller(1);
  }));
  const auto client = daemon.accept();
  CHECK(run.info().path == GOSSAMER_PATH_PINNED);
  CHECK(client->word(0).generation == 2);
  CHECK(client->publication(0)[0] == before + 1);
}

TEST_CASE("a daemon that is opening the GPU is asked again") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  for (int i = 0; i < 3; ++i) {
    const auto waiting = daemon.accept();
    CHECK(waiting->has_device_memory());
    waiting->reply(layout::AttachStatus::device_opening, "in a moment");
  }
  CHECK(run.wait_ready(std::chrono::milliseconds(1)) == GOSSAMER_BUSY);
  CHECK(says(run.last_error(), "in a moment"));
  const auto client = attach(run, daemon);
  CHECK(client->has_device_memory());
  CHECK(run.wait_ready(std::chrono::seconds(10)) == GOSSAMER_OK);
}

TEST_CASE("waiting to be ready serves what is due and waits for the GPU") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  auto client = daemon.accept();
  client->make_due(0, std::vector<float>(256, 9.0F), true);
  client->accept(layout::RunState::joining);
  std::thread joins([&] {
    (void)eventually([&] { return !client->word(0).with_client; });
    client->make_due(1, std::vector<float>(256, 8.0F), true);
    client->header().state.store(static_cast<std::uint32_t>(layout::RunState::running), std::memory_order_release);
    client->announce();
  });
  CHECK(run.wait_ready(std::chrono::seconds(20)) == GOSSAMER_OK);
  joins.join();
  run.step(1);
  gpu.synchronize();
  CHECK(model.first[0] == 9);
  CHECK(model.first[256] == 8);
}

TEST_CASE("a GPU that fails is reported, the daemon is left, and closing ends") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  gpu.fail_after(0);
  client->make_due(0);
  client->announce();
  for (int i = 0; i < 2; ++i) {
    CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_NO_DEVICE);
    CHECK(says(run.last_error(), "GPU 0 has failed: fake failure"));
    CHECK(says(run.last_error(), "start the program anew"));
  }
  CHECK(run.info().attached == 0);
  CHECK(says(run.info().message, "has failed"));
  char byte = 0;
  CHECK(test::readable(client->socket()));
  CHECK(recv(client->socket(), &byte, 1, MSG_DONTWAIT) == 0);  // the run has left
  CHECK(gossamer_finish(run.handle(), -1, nullptr) == GOSSAMER_NO_DEVICE);
  CHECK(gossamer_wait_ready(run.handle(), -1) == GOSSAMER_NO_DEVICE);
}

TEST_CASE("a GPU that fails in a pass is found out by who waits for it") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  gpu.hold();
  client->make_due(0);
  client->announce();
  run.step(1);
  gpu.fail_after(0);
  client->make_due(1);
  client->announce();
  CHECK(gossamer_finish(run.handle(), 10'000, nullptr) == GOSSAMER_NO_DEVICE);
  CHECK(client->word(0).with_client);
}

TEST_CASE("host memory that cannot be pinned is an error that says so") {
  Gpu gpu;
  Model model(gpu);
  gpu.refuse_pin();
  const Outcome outcome = outcome_of(model.tensors());
  CHECK(outcome.status == GOSSAMER_NO_DEVICE);
  CHECK(says(outcome.message, "fake refusal to pin"));
  CHECK(says(outcome.message, "copy of the tensors in host memory"));
  CHECK(gpu.held() == 0);
}

TEST_CASE("where neither memory can be used the run says so, once and for all") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  gpu.refuse_pin();
  daemon.accept()->reply(layout::AttachStatus::no_device, "no plug-in here");
  REQUIRE(eventually([&] { return gossamer_step(run.handle(), 1) == GOSSAMER_NO_DEVICE; }));
  CHECK(says(run.last_error(), "fake refusal to pin"));
  gpu.reset();
  CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_NO_DEVICE);
  CHECK_FALSE(daemon.has_caller(300));
}

TEST_CASE("tensors that are not all on one GPU are refused by name") {
  Gpu gpu;
  std::vector<float> host(300);
  const Values<float> here(gpu, 300);
  const Values<float> there(gpu, 300, 1);
  Outcome outcome = outcome_of({param("here", here.span()), param("on the host", host)});
  CHECK(outcome.status == GOSSAMER_BAD_ARGUMENT);
  CHECK(says(outcome.message, "'on the host' is in host memory"));
  outcome = outcome_of({param("here", here.span()), param("there", there.span())});
  CHECK(outcome.status == GOSSAMER_BAD_ARGUMENT);
  CHECK(says(outcome.message, "'here' is on GPU 0 and tensor 'there' on GPU 1"));
  CHECK(outcome_of({param("here", here.span()), local("counter", GOSSAMER_I64, {})}).status == GOSSAMER_OK);
  CHECK(outcome_of({param("there", there.span())}).status == GOSSAMER_OK);
  outcome = outcome_of({param("here", here.span())}, GOSSAMER_MEMORY_LEAN);
  CHECK(outcome.status == GOSSAMER_BAD_ARGUMENT);
  CHECK(says(outcome.message, "lean"));

  Run run({.job = "test", .socket_path = "/nonexistent/socket", .device = GOSSAMER_CUDA},
          std::vector<Tensor>{param("here", here.span())});
  CHECK(gossamer_set_tensor_data(run.handle(), 0, there.span().data()) == GOSSAMER_BAD_ARGUMENT);
  CHECK(says(run.last_error(), "'here' is on GPU 1 now, and the run on GPU 0"));
  CHECK(gossamer_set_tensor_data(run.handle(), 0, host.data()) == GOSSAMER_BAD_ARGUMENT);
  const auto load = [](void*, size_t, std::uint64_t, std::uint64_t) { return 0; };
  const auto store = [](void*, size_t, std::uint64_t, std::uint64_t) {};
  CHECK(gossamer_set_transfer(run.handle(), load, store, nullptr) == GOSSAMER_BAD_ARGUMENT);
}

TEST_CASE("tensors that have moved on their GPU are served where they are") {
  Gpu gpu;
  Model model(gpu);
  const Values<float> moved(gpu, 700);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  run.set_tensor_data(0, moved.span().data());
  client->make_due(0, std::vector<float>(256, 1.0F));
  client->announce();
  run.step(1);
  gpu.synchronize();
  CHECK(moved[0] == 1);
  CHECK(model.first[0] == 1);  // the old memory is unchanged
  CHECK(client->publication(0)[0] == 1);
}

TEST_CASE("without the plug-in a run on a GPU says what to install") {
  Gpu gpu;
  const Values<float> values(gpu, 300);
  const test::TemporaryFolder folder;
  setenv("GOSSAMER_CLIENT_CUDA_PLUGIN", folder.file("missing.so").c_str(), 1);
  Outcome outcome = outcome_of({param("values", values.span())});
  CHECK(outcome.status == GOSSAMER_NO_DEVICE);
  CHECK(says(outcome.message, "missing.so"));
  CHECK(says(outcome.message, "package gossamer-cuda"));
  setenv("GOSSAMER_CLIENT_CUDA_PLUGIN", "libm.so.6", 1);
  outcome = outcome_of({param("values", values.span())});
  CHECK(outcome.status == GOSSAMER_NO_DEVICE);
  CHECK(says(outcome.message, "is not the plug-in of this library"));
}

TEST_CASE("the plug-in that is installed says that there is no GPU, or that the tensors are not on one") {
  std::vector<float> host(300);
  const Outcome outcome = outcome_of({param("values", host)});
  const bool no_plugin = outcome.status == GOSSAMER_NO_DEVICE && says(outcome.message, "package gossamer-cuda");
  const bool no_driver = outcome.status == GOSSAMER_NO_DEVICE && says(outcome.message, "is there an NVIDIA GPU");
  const bool on_host = outcome.status == GOSSAMER_BAD_ARGUMENT && says(outcome.message, "'values' is in host memory");
  INFO(outcome.message);
  CHECK((no_plugin || no_driver || on_host));
}

TEST_CASE("words from a hostile daemon do no harm to a run on a GPU") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  const std::vector<float> before = model.flat();
  for (const std::uint64_t bits :
       {~std::uint64_t{0}, std::uint64_t{1}, layout::Word{.with_client = true, .empty = true}.pack(),
        layout::Word{.publication = 2, .correction = 2, .with_client = true}.pack()}) {
    client->fragment(0).word = bits;
    client->announce();
    CHECK(gossamer_step(run.handle(), 1) == GOSSAMER_BAD_MEMORY);
  }
  // The daemon stores a word again while a pass with it is running. Both are served, in order.
  client->fragment(0).word = layout::Word{.generation = 5, .with_client = true}.pack();
  client->announce();
  gpu.hold();
  run.step(1);
  client->fragment(0).word = layout::Word{.generation = 9, .with_client = true}.pack();
  client->announce();
  run.step(1);
  gpu.release();
  gpu.synchronize();
  CHECK(client->word(0).generation == 10);
  CHECK(model.flat() == before);
}

TEST_CASE("closing serves what is due on a GPU, and frees all that the run had") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  std::optional<Run> run(open(model, daemon));
  const auto client = attach(*run, daemon);
  const float before = model.first[0];
  gpu.hold();
  client->make_due(0, std::vector<float>(256, 1.0F));
  client->announce();
  run->step(1);
  client->make_due(1, std::vector<float>(256, 1.0F));
  const std::uint64_t launches = gpu.launches();
  std::thread opens([&] {
    (void)eventually([&] { return gpu.launches() == launches + 1; });
    gpu.release();
  });
  (void)client->doorbell_rings();
  run.reset();
  opens.join();
  CHECK(model.first[0] == before + 1);
  CHECK_FALSE(client->word(0).with_client);
  CHECK_FALSE(client->word(1).with_client);
  CHECK(client->doorbell_rings() >= 1);
  CHECK(gpu.held() == 0);
}

TEST_CASE("closing does not free what a GPU that stands still has yet to work on") {
  Gpu gpu;
  const Values<float> values(gpu, 300);
  ContractDaemon daemon;
  std::optional<Run> run(Run({.job = "test", .socket_path = daemon.path(), .device = GOSSAMER_CUDA},
                             std::vector<Tensor>{param("values", values.span())}));
  const auto client = attach(*run, daemon);
  gpu.hold();
  client->make_due(0, std::vector<float>(512, 1.0F));
  client->announce();
  run->step(1);
  const auto begin = std::chrono::steady_clock::now();
  run.reset();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(gpu.held() > 0);
  gpu.release();  // then the GPU works on it
  gpu.synchronize();
  CHECK_FALSE(client->word(0).with_client);
  CHECK(client->publication(0)[7] == 1);
}

TEST_CASE("a child of a program that trains on a GPU leaves the GPU alone") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  const auto client = attach(run, daemon);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = gossamer_step(run.handle(), 1) == GOSSAMER_FORKED;
    gossamer_close(run.handle());
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  client->make_due(0);
  client->announce();
  run.step(1);
  gpu.synchronize();
  CHECK_FALSE(client->word(0).with_client);
  CHECK(run.info().attached == 1);
}

TEST_CASE("a daemon that dies while a GPU works finds the word when it is back") {
  Gpu gpu;
  Model model(gpu);
  ContractDaemon daemon;
  Run run = open(model, daemon);
  {
    const auto client = attach(run, daemon);
    client->make_due(0);
    client->announce();
    gpu.hold();
    run.step(1);
    daemon.die();
  }
  REQUIRE(eventually([&] { return run.info().attached == 0; }));
  daemon.listen();
  const auto client = attach(run, daemon);
  CHECK(client->request.flags == (layout::attach_device | layout::attach_resume));
  CHECK(client->word(0).with_client);
  (void)client->doorbell_rings();
  const std::uint64_t launches = gpu.launches();
  run.step(1);  // looks at every fragment, and launches none twice
  CHECK(gpu.launches() == launches);
  gpu.release();
  CHECK(eventually([&] { return client->doorbell_rings() > 0; }));
  CHECK(client->word(0).generation == 2);
}
