// Jobs whose clients' buffers are in the memory of GPUs, which are fake: the daemon's own code works in memory that
// nothing but the GPU can touch (tests/unit/daemon/device/fake_cuda_plugin.cpp), exchanges with a node whose clients
// are in host memory, and averages clients of both kinds.

#include <array>
#include <memory>

#include "tests/unit/daemon/jobs/played_job.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using device::fake::fake_counts;
using device::fake::FakeGpus;
using std::chrono::microseconds;
using test::Daemon;
using test::step;
using test::steps;
using test::Trainer;

namespace {

/// Checks that nothing of a GPU is held. The thread of a daemon's Devices has ended with the daemon.
void check_nothing_is_left() {
  CHECK(fake_counts().mappings == 0);
  CHECK(fake_counts().pinned == 0);
  CHECK(fake_counts().allocations == 0);
  CHECK(fake_counts().contexts == 0);
}

}  // namespace

TEST_CASE("a node whose client is on a GPU and one whose client is not end with the same model") {
  const FakeGpus gpus;
  const bool founder_on_gpu = GENERATE(true, false);
  const CodecChoice codec = GENERATE(CodecChoice::f32, CodecChoice::q8);
  {
    Trainer first(2, microseconds(50), founder_on_gpu ? std::optional(0) : std::nullopt);
    Trainer second(-7, microseconds(80), founder_on_gpu ? std::nullopt : std::optional(0));
    Daemon founder;
    Daemon joiner(false, &founder);
    founder.codec = joiner.codec = codec;
    first.may_train = second.may_train = false;
    founder.attach(first);
    first.start();
    founder.run_until([&] { return first.running(); });
    joiner.attach(second);
    second.start();
    founder.run_until([&] { return second.running(); });
    CHECK(joiner.status().pulled_bytes > 0);
    first.may_train = second.may_train = true;
    const float expected = 2 + static_cast<float>(steps) * step;
    // Both trained alike: each exchange keeps their sum.
    const auto is_there = [&](const Trainer& trainer) { return std::abs(trainer.published() - expected) < step / 8; };
    founder.run_until([&] { return first.trained() && second.trained() && is_there(first) && is_there(second); },
                      [&] { return std::to_string(first.published()) + " " + std::to_string(second.published()); });
    CHECK(founder.status().exchanges > 0);
    CHECK(founder.status().quarantines + joiner.status().quarantines == 0);
    Daemon& on_gpu = founder_on_gpu ? founder : joiner;
    CHECK(on_gpu.job().home().name() == "fake GPU 0");
    CHECK(on_gpu.status().processes[0].buffers == "GPU-a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a500");
    CHECK(fake_counts().mappings == 1);
  }
  check_nothing_is_left();
}

TEST_CASE("a node whose GPU has no room exchanges as any other, and goes back to its memory by itself") {
  const FakeGpus gpus;
  // A commit takes memory while the client holds the fragment. An outer optimiser, or the node's own copy, takes memory
  // for as long as it exists.
  const bool several = GENERATE(false, true);
  {
    Trainer first(2, microseconds(50), 0);
    Trainer second(2, microseconds(80));
    Trainer third(2, microseconds(80), 0);
    Daemon founder;
    Daemon joiner(false, &founder);
    founder.codec = joiner.codec = CodecChoice::f32;
    founder.outer_momentum = several ? 0 : 0.1;
    first.may_train = second.may_train = third.may_train = false;
    gpus.be("no memory");
    founder.attach(first);
    joiner.attach(second);
    first.start();
    second.start();
    founder.run_until([&] { return first.running() && second.running(); });
    if (several) founder.attach(third);
    third.start();
    founder.run_until([&] { return !several || third.running(); });
    first.may_train = second.may_train = third.may_train = true;
    founder.run_until([&] { return first.trained() && second.trained() && founder.status().exchanges > 100; });
    founder.run_until([&] { return founder.devices().overflow_bytes() > 0; });
    CHECK(fake_counts().allocations == 0);
    CHECK(founder.status().quarantines + joiner.status().quarantines == 0);
    CHECK(founder.job().home().failure().empty());
    gpus.be("");
    if (!several) founder.attach(third);  // the node's copy is made for this client
    founder.run_until([&] { return third.trained(); });
    if (!several) founder.run_until([&] { return fake_counts().allocations > 0; });
  }
  check_nothing_is_left();
}

TEST_CASE("where neither a GPU nor the host has room a commit that needs some fails, and all goes on when there is") {
  const FakeGpus gpus;
  {
    Trainer first(2, microseconds(50), 0);
    Trainer second(2, microseconds(80));
    Daemon founder;
    Daemon joiner(false, &founder);
    founder.codec = joiner.codec = CodecChoice::f32;
    founder.outer_momentum = 0.1;
    founder.attach(first);
    joiner.attach(second);
    gpus.be("no memory\npin fails");
    first.start();
    second.start();
    const auto& gpu = dynamic_cast<const device::CudaDevice&>(founder.job().home());
    founder.run_until([&] { return !gpu.overflow_use().trouble.empty(); });
    CHECK(fake_counts().allocations + fake_counts().pinned == 0);
    CHECK(gpu.failure().empty());
    gpus.be("");
    founder.run_until([&] { return first.trained() && second.trained(); });
    founder.run_until([&] { return std::abs(first.published() - second.published()) < step / 8; });
    founder.run_until([&] { return founder.status().quarantined_fragments == 0; });
  }
  check_nothing_is_left();
}

TEST_CASE("clients of a job on one GPU, and one in host memory, end at the mean of what they learned, exactly") {
  const FakeGpus gpus;
  {
    Trainer fast(2, microseconds(20), 0);
    Trainer slow(-5, microseconds(700), 0);
    Trainer on_host(9, microseconds(100));
    Trainer late(0, microseconds(50), 0);
    Daemon daemon;
    const std::vector<Trainer*> all = {&fast, &slow, &on_host, &late};
    for (Trainer* trainer : all) {
      daemon.attach(*trainer);
      trainer->may_train = false;
      trainer->start();
    }
    CHECK(fake_counts().mappings == 3);
    CHECK(fake_counts().pinned == 1);
    daemon.run_until([&] { return std::all_of(all.begin(), all.end(), [](Trainer* t) { return t->running(); }); });
    for (Trainer* trainer : all)
      trainer->may_train = true;
    const float expected = 2 + static_cast<float>(steps) * step;
    daemon.run_until([&] {
      return std::all_of(all.begin(), all.end(),
                         [&](Trainer* t) { return t->trained() && t->published() == Approx(expected).epsilon(1e-6); });
    });
    CHECK(fake_counts().allocations > 0);  // the node's copy
  }
  check_nothing_is_left();
}

TEST_CASE("a client on a GPU, of a job that is averaged on the processor, is told to take part through host memory") {
  const FakeGpus gpus;
  Trainer first(1, microseconds(50));
  Trainer second(1, microseconds(50), 0);
  Daemon daemon;
  daemon.attach(first);
  first.start();
  daemon.run_until([&] { return first.running(); });
  const auto refused = daemon.try_attach(second);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().status == layout::AttachStatus::no_device);
  CHECK(refused.error().message.find("the processor") != std::string::npos);
}

TEST_CASE("memory that a job on a GPU does not take is not pinned for it") {
  const FakeGpus gpus;
  constexpr std::uint32_t fragment_elements = 1024;  // the least that lean memory takes
  const std::vector<test::TestTensor> model = {{"weights", layout::Role::param, {2 * fragment_elements}}};
  test::TestMemory first(model, fragment_elements);
  first.seal();
  first.move_to_device(device::fake::uuid_of(0));
  Daemon daemon;
  REQUIRE(daemon.try_attach(first));
  gpus.be("pin fails");
  const auto check_refused = [&](const test::TestMemory& memory, layout::AttachStatus status, const char* why) {
    const auto refused = daemon.try_attach(memory);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().status == status);
    CHECK(refused.error().message.find(why) != std::string::npos);
  };
  test::TestMemory lean(model, fragment_elements);
  lean.header().window_bytes = layout::fragment_bytes(lean.plan);
  for (std::uint32_t f = 0; f < lean.plan.fragment_count; ++f)
    lean.fragment(f).word = layout::Word{.empty = true}.pack();
  lean.seal();
  check_refused(lean, layout::AttachStatus::limit_reached, "lean memory is for one client");
  test::TestMemory other(test::small_model, fragment_elements);
  other.seal();
  check_refused(other, layout::AttachStatus::bad_layout, "tensors differ");
}

TEST_CASE("clients of a job on several GPUs, and one in host memory, end at the mean of what they learned, exactly") {
  const FakeGpus gpus;
  const bool nccl = GENERATE(true, false);
  gpus.be(nccl ? "gpus 3" : "gpus 3\nno nccl");
  {
    Trainer home(2, microseconds(20), 0);
    Trainer second(-5, microseconds(300), 1);
    Trainer on_host(9, microseconds(100));
    Trainer third(0, microseconds(50), 2);
    Daemon daemon;
    const std::vector<Trainer*> all = {&home, &second, &on_host, &third};
    for (Trainer* trainer : all) {
      daemon.attach(*trainer);
      trainer->may_train = false;
      trainer->start();
    }
    daemon.run_until([&] { return std::all_of(all.begin(), all.end(), [](Trainer* t) { return t->running(); }); });
    daemon.run_until([&] { return daemon.sums().status().ranks.size() == (nccl ? 3 : 0); });
    for (Trainer* trainer : all)
      trainer->may_train = true;
    const float expected = 2 + static_cast<float>(steps) * step;
    daemon.run_until([&] {
      return std::all_of(all.begin(), all.end(),
                         [&](Trainer* t) { return t->trained() && t->published() == Approx(expected).epsilon(1e-6); });
    });
    CHECK((daemon.sums().status().counters.reductions > 0) == nccl);
    const JobStatus status = daemon.status();
    CHECK(status.quarantines == 0);
    CHECK(status.gpu_means > 0);
    CHECK((status.gpu_means_through_host == status.gpu_means) == !nccl);
    CHECK(status.gpu_means_failed == 0);
  }
  check_nothing_is_left();
}

TEST_CASE("a GPU that fails takes only its own clients from a job that has others") {
  const FakeGpus gpus;
  gpus.be("gpus 2");
  {
    Trainer home(2, microseconds(50), 0);
    Trainer other(2, microseconds(80), 1);
    Daemon daemon;
    daemon.attach(home);
    const auto session = daemon.attach(other);
    home.start();
    other.start();
    daemon.run_until([&] { return home.running() && other.running() && other.memory().header().clock.load() > 20; });
    gpus.be("gpus 2\nwork fails 1");
    std::vector<const gossip::Device*> failed;
    daemon.run_until([&] { return !(failed = daemon.devices().failed()).empty(); });
    REQUIRE(failed.size() == 1);
    CHECK(failed[0] != &daemon.job().home());
    CHECK(daemon.job().home().failure().empty());
    other.stop();
    daemon.detach(session);
    Trainer back(7, microseconds(50));  // its buffers are in host memory
    daemon.attach(back);
    back.start();
    daemon.run_until([&] { return home.trained() && back.trained(); });
    daemon.run_until([&] { return std::abs(home.published() - back.published()) < step; });
    CHECK(home.published() > 2 + steps * step * 0.5F);
    CHECK(home.published() < 2 + steps * step * 2);
  }
  check_nothing_is_left();
}

TEST_CASE("daemons die among clients on several GPUs: what these learned counts once at most, and most of it does") {
  const FakeGpus gpus;
  gpus.be("gpus 3");
  {
    std::array<Trainer, 3> trainers{{{1, microseconds(100), 0}, {5, microseconds(250), 1}, {9, microseconds(150), 2}}};
    test::train_while_daemons_die(trainers);
  }
  check_nothing_is_left();
}

TEST_CASE("a second client takes part once the GPU has room for the node's copy") {
  const FakeGpus gpus;
  Trainer first(2, microseconds(50), 0);
  Trainer second(7, microseconds(50), 0);
  first.may_train = second.may_train = false;
  Daemon daemon;
  daemon.attach(first);
  first.start();
  daemon.run_until([&] { return first.running(); });
  gpus.be("no memory\npin fails");
  daemon.attach(second);
  second.start();
  int turns = 0;
  daemon.run_until([&] { return ++turns > 100; });
  CHECK_FALSE(second.running());
  gpus.be("");
  daemon.run_until([&] { return second.running(); });
  CHECK(second.published() == 2);
}

TEST_CASE("clients that come back together lose nothing where a GPU has no room for a while") {
  const FakeGpus gpus;
  const std::string full = GENERATE("no memory 0", "no memory 1");
  gpus.be("gpus 2");
  {
    Trainer home(2, microseconds(50), 0);
    Trainer other(2, microseconds(50), 1);
    const auto both = [&](auto condition) { return condition(home) && condition(other); };
    home.may_train = other.may_train = false;
    auto daemon = std::make_unique<Daemon>();
    for (Trainer* const trainer : {&home, &other}) {
      daemon->attach(*trainer);
      trainer->start();
    }
    daemon->run_until([&] { return both([](const Trainer& trainer) { return trainer.running(); }); });
    home.stop();
    other.stop();
    // The second client has every fragment, trains, and publishes after the daemon's death.
    constexpr int trained = 8;
    other.may_train = true;
    for (int i = 0; i < trained; ++i)
      other.turn();
    daemon->run_until([&] { return other.all_due(); });
    daemon = nullptr;
    for (int i = 0; i < trained; ++i)
      other.turn();
    other.may_train = false;
    gpus.be("gpus 2\npin fails\n" + full);
    daemon = std::make_unique<Daemon>(true);
    if (full == "no memory 0") {  // the node's copy should be on the first client's GPU
      const auto refused = daemon->try_attach(home);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().status == layout::AttachStatus::job_busy);
      gpus.be("gpus 2");
    }
    daemon->attach(home);
    daemon->attach(other);
    home.start();
    other.start();
    const std::uint64_t calls = fake_counts().calls;
    daemon->run_until([&] { return home.memory().header().place.load() >> 32 == 2; });
    int turns = 0;
    daemon->run_until([&] { return fake_counts().calls > calls && ++turns > 1000; });
    gpus.be("gpus 2");
    const float expected = 2 + 2 * trained * step / 2;  // half of what it trained, as one of two clients
    daemon->run_until(
        [&] {
          return both([&](const Trainer& trainer) { return trainer.published() == Approx(expected).epsilon(1e-6); });
        },
        [&] { return std::to_string(home.published()) + " " + std::to_string(other.published()); });
  }
  check_nothing_is_left();
}

TEST_CASE("a GPU that fails in the middle of exchanges costs its job the exchange, and nobody else anything") {
  const FakeGpus gpus;
  {
    Trainer first(2, microseconds(50), 0);
    Trainer second(2, microseconds(80));
    Daemon founder;
    Daemon joiner(false, &founder);
    founder.codec = joiner.codec = CodecChoice::f32;
    const auto session = founder.attach(first);
    joiner.attach(second);
    first.start();
    second.start();
    founder.run_until([&] { return founder.status().exchanges > 20 && joiner.status().exchanges > 20; });
    gpus.be("work fails");
    std::vector<const gossip::Device*> failed;
    founder.run_until([&] { return !(failed = founder.devices().failed()).empty(); });
    CHECK(failed == std::vector<const gossip::Device*>{&founder.job().home()});
    founder.detach(session);
    gpus.be("");
    founder.run_until([&] { return founder.job().done() && second.trained(); });
    CHECK(std::abs(second.published()) < 3);  // it goes on with a finite model
  }
  check_nothing_is_left();
}
