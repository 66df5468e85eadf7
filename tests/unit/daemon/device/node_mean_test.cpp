// The mean among clients on several GPUs of a node, over the fake plug-in. Neither the host nor another GPU can touch a
// fake GPU's memory, and its communicator hangs and fails when it is told to.

#include "daemon/device/node_mean.hpp"

#include <cmath>
#include <cstring>
#include <future>
#include <limits>

#include "catch.hpp"
#include "daemon/device/fake_gpus.hpp"
#include "daemon/device/nccl_collectives.hpp"
#include "gossip/group/local_group.hpp"
#include "gossip/random.hpp"

using namespace gossamer;
using namespace gossamer::device;
using gossamer::device::fake::fake_counts;
using gossamer::device::fake::FakeGpus;
using gossip::ClientFragment;
using gossip::LocalGroup;
using gossip::LocalMeanOutcome;
using gossip::Random;
using gossip::Take;

namespace {

using Values = std::vector<float>;
using Floats = gossip::Device::Floats;
using Result = NodeSums::Result;

constexpr std::size_t elements = 2 * block_elements;
constexpr float lattice = 1.0F / 1024;
constexpr std::chrono::seconds patience{60};

/// Nobody is given up because the machine that runs the tests is slow.
constexpr SumLimits calm{
    .reducer = {.make_us = 60 * us_per_s, .reduce_us = 60 * us_per_s, .pause_us = 1000, .longest_pause_us = 4000},
    .turn_us = 60 * us_per_s};
/// The limits are so short that a hanging call is given up at once.
constexpr SumLimits hasty{
    .reducer = {.make_us = 20'000, .reduce_us = 20'000, .pause_us = 1000, .longest_pause_us = 4000},
    .turn_us = 60 * us_per_s};

void wait_until(auto condition) {
  const auto until = std::chrono::steady_clock::now() + patience;
  bool in_time = true;
  while (!condition() && in_time) {
    in_time = std::chrono::steady_clock::now() < until;
    std::this_thread::yield();
  }
  REQUIRE(in_time);
}

/// A machine with GPUs, and the daemon's objects for them.
class Gpus {
 public:
  explicit Gpus(int count, const SumLimits& limits = calm) {
    be("");
    const auto plugin = Plugin::load(GOSSAMER_FAKE_PLUGIN);
    if (!plugin) FAIL(plugin.error());
    auto collectives = std::make_unique<NcclCollectives>();
    for (int gpu = 0; gpu < count; ++gpu) {
      auto device = CudaDevice::open(*plugin, gpu);
      if (!device) FAIL(device.error());
      devices_.push_back(std::move(*device));
      collectives->know(gpu, *devices_.back());
    }
    sums_ = std::make_shared<NodeSums>(std::move(collectives), limits);
  }
  void be(const std::string& lines) const { machine_.be("gpus 8\n" + lines); }
  [[nodiscard]] const CudaDevice& at(int gpu) const { return *shared(gpu); }
  [[nodiscard]] int count() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] NodeSums& sums() { return *sums_; }
  [[nodiscard]] const std::shared_ptr<NodeSums>& shared_sums() const { return sums_; }
  [[nodiscard]] const std::shared_ptr<CudaDevice>& shared(int gpu) const {
    return devices_.at(static_cast<std::size_t>(gpu));
  }
  void end_sums() { sums_.reset(); }
  bool add(int gpu) { return sums().add(gpu, shared(gpu)); }
  void join_all() {
    for (int gpu = 0; gpu < count(); ++gpu)
      REQUIRE(add(gpu));
    wait_for_ranks(devices_.size());
  }
  void wait_for_ranks(std::size_t ranks) {
    wait_until([&] { return sums().status().ranks.size() == ranks; });
  }
  [[nodiscard]] Floats holding(int gpu, const Values& values) const {
    Floats there = at(gpu).allocate(values.size());
    REQUIRE(there != nullptr);
    REQUIRE(at(gpu).upload(there.get(), values));
    return there;
  }
  [[nodiscard]] Values read(int gpu, const float* there, std::size_t count) const {
    Values values(count);
    REQUIRE(at(gpu).download(values, there));
    return values;
  }
  /// Adds up an array over these GPUs, all of whose elements are `value`.
  [[nodiscard]] Result add_up(const std::vector<int>& gpus, float value, Values* total = nullptr) {
    std::vector<NodeSums::Part> parts;
    for (const int gpu : gpus)
      parts.push_back({.device = &at(gpu), .values = holding(gpu, Values(elements, value)), .capacity = elements});
    const Result result = sums().add_up(parts, elements);
    if (result == Result::failed) CHECK(parts.empty());
    if (result == Result::done && total != nullptr) *total = read(gpus.back(), parts.back().values.get(), elements);
    return result;
  }

 private:
  FakeGpus machine_;
  std::vector<std::shared_ptr<CudaDevice>> devices_;
  std::shared_ptr<NodeSums> sums_;
};

Values random_values(Random& random, std::size_t count) {
  Values values(count);
  for (float& value : values)
    value = static_cast<float>((random.uniform() - 0.5) * std::exp2(random.uniform() * 20 - 10));
  return values;
}

/// One client of a random task, in the host's memory and on its GPU.
struct MeanClient {
  int gpu = 0;
  ClientFragment host, there;
  Values snapshot, base, base_correction, correction;
  std::vector<Floats> arrays;
};

/// A task among clients on random GPUs, some of which are not finite, and what a single device makes of it.
struct RandomTask {
  RandomTask(const Gpus& gpus, Random& random, std::size_t count) : y(random_values(random, count)) {
    clients.resize(1 + random.next() % 8);
    for (MeanClient& client : clients)
      make(gpus, random, client);
  }

  void make(const Gpus& gpus, Random& random, MeanClient& client) const {
    const std::size_t count = y.size();
    client.gpu = static_cast<int>(random.next() % static_cast<std::uint64_t>(gpus.count()));
    client.snapshot = random_values(random, count);
    if (random.uniform() < 0.1) client.snapshot[random.next() % count] = std::numeric_limits<float>::quiet_NaN();
    client.base = random_values(random, count);
    client.base_correction = random_values(random, count);
    client.correction = Values(count, 77);
    const auto array = [&](const Values& values) {
      client.arrays.push_back(gpus.holding(client.gpu, values));
      return client.arrays.back().get();
    };
    client.host = {.snapshot = client.snapshot.data(),
                   .take = static_cast<Take>(random.next() % 3),
                   .weight = 1.0F / static_cast<float>(1 + random.next() % 8),
                   .replace = random.uniform() < 0.3};
    client.there = client.host;
    client.there.device = client.gpu == 0 && random.uniform() < 0.5 ? nullptr : &gpus.at(client.gpu);
    client.there.snapshot = array(client.snapshot);
    if (client.host.take == Take::progress) {
      client.host.base = client.base.data();
      client.there.base = array(client.base);
      if (random.uniform() < 0.5) {
        client.host.base_correction = client.base_correction.data();
        client.there.base_correction = array(client.base_correction);
      }
    }
    if (random.uniform() < 0.7) {
      client.host.correction = client.correction.data();
      client.there.correction = array(client.correction);
    }
  }

  /// |y on several devices − y on one|. Both add the same n rounded terms w·m to y, in another order: each is off by at
  /// most γ Σ|terms|, with γ = k u / (1 − k u) for k additions and u = 2^-24 (Higham 2002, 4.2).
  [[nodiscard]] double bound(const Values& before, std::size_t e, int gpus) const {
    double total = std::abs(static_cast<double>(before[e]));
    for (const MeanClient& client : clients) {
      if (client.host.take != Take::progress) continue;
      const float from =
          client.host.base_correction == nullptr ? client.base[e] : client.base[e] + client.base_correction[e];
      const double term = static_cast<double>(client.host.weight * (client.snapshot[e] - from));
      if (std::isfinite(term)) total += std::abs(term);
    }
    const double ku = static_cast<double>(clients.size() + static_cast<std::size_t>(gpus)) * std::exp2(-24);
    return 2 * ku / (1 - ku) * total;
  }

  Values y;
  std::vector<MeanClient> clients;
};

}  // namespace

TEST_CASE("the mean among clients on several GPUs is that of one, but for the order of a sum", "[node-mean]") {
  const bool communicator = GENERATE(true, false);
  const int gpu_count = GENERATE(1, 2, 5);
  Gpus gpus(gpu_count);
  if (communicator) gpus.join_all();
  const NodeMean node(gpus.shared(0), communicator ? gpus.shared_sums() : nullptr);
  Random random(static_cast<std::uint64_t>(gpu_count));
  for (int life = 0; life < 60; ++life) {
    const std::size_t count = block_elements * (1 + random.next() % 4);
    RandomTask task(gpus, random, count);
    const Floats y_there = gpus.holding(0, task.y);
    const Values before = task.y;
    std::vector<ClientFragment> host, there;
    for (const MeanClient& client : task.clients) {
      host.push_back(client.host);
      there.push_back(client.there);
    }
    std::vector<LocalMeanOutcome> expected(host.size());
    gossip::local_mean(host, task.y, expected);
    const auto found = node.run({there}, {y_there.get(), count});
    const Values y = gpus.read(0, y_there.get(), count);
    std::size_t wrong = 0;
    for (std::size_t e = 0; e < count; ++e)
      wrong += std::abs(static_cast<double>(y[e]) - static_cast<double>(task.y[e])) > task.bound(before, e, gpu_count);
    CHECK(wrong == 0);
    for (std::size_t c = 0; c < host.size(); ++c) {
      CHECK(found[c].reached);
      CHECK(found[c].written);
      CHECK(found[c].finite == expected[c].finite);
      CHECK(found[c].moved == expected[c].moved);
      if (host[c].correction == nullptr) continue;
      CHECK(found[c].differs == expected[c].differs);
      const Values correction = gpus.read(task.clients[c].gpu, there[c].correction, count);
      Values wanted = y;  // the same bits on every GPU
      for (std::size_t e = 0; e < count; ++e) {
        if (!host[c].replace) wanted[e] = y[e] - task.clients[c].snapshot[e];
      }
      if (!found[c].finite) wanted.assign(count, 77);
      CHECK(std::memcmp(correction.data(), wanted.data(), count * sizeof(float)) == 0);
    }
  }
  CHECK((gpu_count == 1) == (node.counters().summed == 0));
  CHECK((communicator || node.counters().through_host == node.counters().summed));
  CHECK((!communicator || node.counters().through_host == 0));
  CHECK(node.counters().failed == 0);
}

namespace {

/// A client with the three buffers of one fragment on its GPU. All its elements are one value.
struct Trainer {
  Trainer(const Gpus& gpus, int on) : gpu(on) {
    for (Floats& buffer : buffers)
      buffer = gpus.holding(gpu, Values(elements));
  }
  int gpu;
  float x = 0;
  float progress = 0;
  std::array<Floats, 3> buffers;
  std::uint8_t publication = 0;
  std::uint8_t correction = 1;
  bool valid = false;
  bool was_corrected = false;
  bool due = false;

  [[nodiscard]] std::uint8_t spare() const { return static_cast<std::uint8_t>(3 - publication - correction); }
  void train(float step) {
    x += step;
    progress += step;
  }
};

/// One job with its home on GPU 0. It carries out LocalGroup's decisions as daemon/jobs/job_group.cpp does.
struct Job {
  Gpus& gpus;
  NodeMean mean{gpus.shared(0), gpus.shared_sums()};
  Floats y = gpus.holding(0, Values(elements));
  LocalGroup group{1, 0};
  std::map<LocalGroup::ClientId, Trainer> trainers = {};
  TimeUs now_us = 0;
  std::uint32_t withheld = 0;

  Job(Gpus& machine, const std::vector<int>& places) : gpus(machine) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      trainers.emplace(i + 1, Trainer(gpus, places[i]));
      group.add(i + 1, LocalGroup::Arrival::with_values, 0);
    }
    group.gathered(0, std::nullopt, false, now_us);
  }
  [[nodiscard]] Values copy() const { return gpus.read(0, y.get(), elements); }
  void run(const LocalGroup::Work& work) {
    gossip::LocalMeanTask task;
    for (const auto& part : work.parts) {
      Trainer& trainer = trainers.at(part.id);
      const auto buffer = [&](std::uint8_t index) { return trainer.buffers[index].get(); };
      ClientFragment fragment{.snapshot = buffer(trainer.publication),
                              .take = part.take,
                              .weight = part.weight,
                              .device = &gpus.at(trainer.gpu)};
      if (part.take == Take::progress) {
        fragment.base = buffer(trainer.spare());
        fragment.base_correction = trainer.was_corrected ? buffer(trainer.correction) : nullptr;
      }
      if (part.offer) fragment.correction = buffer(trainer.spare());
      task.clients.push_back(fragment);
    }
    const auto outcomes = mean.run(task, {y.get(), elements});
    group.done(0, work, outcomes);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (!work.parts[i].offer) continue;
      Trainer& trainer = trainers.at(work.parts[i].id);
      if (!outcomes[i].written) {
        group.withheld(0, work.parts[i]);
        ++withheld;
        continue;
      }
      if (outcomes[i].differs) trainer.correction = trainer.spare();
      trainer.valid = outcomes[i].differs;
      trainer.due = true;
    }
  }
  void begin() {
    if (group.under_way().empty()) run(group.begin(0, false, now_us));
  }
  void serve(LocalGroup::ClientId id) {
    Trainer& trainer = trainers.at(id);
    if (!trainer.due) return;
    if (trainer.valid) {
      const Values correction = gpus.read(trainer.gpu, trainer.buffers[trainer.correction].get(), elements);
      CHECK(correction == Values(elements, correction[0]));
      trainer.x += correction[0];
    }
    REQUIRE(gpus.at(trainer.gpu).upload(trainer.buffers[trainer.spare()].get(), Values(elements, trainer.x)));
    trainer.was_corrected = trainer.valid;
    trainer.publication = trainer.spare();
    trainer.valid = trainer.due = false;
    group.published(id, 0, now_us);
  }
  void end_if_over() {
    if (!group.over(0, now_us)) return;
    group.end(0);
    run(group.take_in(0));
  }
  /// Runs rounds in which all clients serve, until all hold the same.
  void settle() {
    for (int i = 0; i < 200 && (i < 4 || !group.even()); ++i) {
      begin();
      for (auto& [id, trainer] : trainers)
        serve(id);
      now_us += us_per_s;
      end_if_over();
    }
    CHECK(group.even());
  }
};

}  // namespace

TEST_CASE("whatever becomes of a node's communicator, what each client learned counts once", "[node-mean]") {
  const std::vector<std::string> troubles = {
      "sums fail", "sums hang", "no nccl", "join hangs", "no memory", "no memory\npin fails", "join hangs", ""};
  std::uint32_t withheld = 0;
  NodeMean::Counters counted;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    Gpus gpus(3, hasty);
    if (seed % 2 == 0) {
      gpus.join_all();
    } else {  // the GPUs may join while the clients train
      for (int gpu = 0; gpu < 3; ++gpu)
        REQUIRE(gpus.add(gpu));
    }
    Job job(gpus, {0, 1, 1, 2});
    for (int turn = 0; turn < 120; ++turn) {
      job.now_us += 1000;
      if (random.uniform() < 0.2) gpus.be(troubles[random.next() % troubles.size()]);
      const LocalGroup::ClientId id = 1 + random.next() % 4;
      job.trainers.at(id).train(static_cast<float>(random.next() % 8) * lattice);
      if (!job.trainers.at(id).due || random.uniform() < 0.8) job.serve(id);
      job.end_if_over();
      if (random.uniform() < 0.4) job.begin();
    }
    gpus.be("");
    job.settle();
    float expected = 0;
    for (const auto& [id, trainer] : job.trainers)
      expected += trainer.progress / 4;
    CHECK(job.copy() == Values(elements, expected));
    for (const auto& [id, trainer] : job.trainers)
      CHECK(trainer.x == expected);
    withheld += job.withheld;
    counted.summed += job.mean.counters().summed;
    counted.through_host += job.mean.counters().through_host;
    counted.failed += job.mean.counters().failed;
  }
  CHECK(withheld > 0);
  CHECK(counted.failed > 0);
  CHECK(counted.through_host > 0);
  CHECK(counted.summed > counted.through_host);
  CHECK(fake_counts().communicators == 0);
  CHECK(fake_counts().pinned == 0);
  CHECK(fake_counts().allocations == 0);
}

TEST_CASE("a GPU that is lost takes its own clients with it, and the others go on", "[node-mean]") {
  Gpus gpus(3);
  gpus.join_all();
  Job job(gpus, {0, 0, 1, 2});
  for (auto& [id, trainer] : job.trainers)
    trainer.train(static_cast<float>(id) * lattice);
  job.settle();
  const float before = (1 + 2 + 3 + 4) * lattice / 4;
  REQUIRE(job.copy() == Values(elements, before));

  job.trainers.at(1).train(4 * lattice);
  job.begin();
  for (const LocalGroup::ClientId id : {1, 2, 3, 4})
    job.serve(id);
  gpus.be("work fails 2");
  job.end_if_over();  // the lost GPU's client cannot be taken in
  CHECK(job.copy() == Values(elements, before + lattice));
  CHECK_FALSE(gpus.at(2).failure().empty());
  CHECK(gpus.at(0).failure().empty());
  CHECK(gpus.at(1).failure().empty());
  CHECK(job.mean.counters().failed == 1);
  // The daemon lets the lost GPU's client go, and in the end gives up what that client has published.
  job.group.remove(4);
  gpus.sums().remove(2);
  for (std::uint32_t i = 0; i < LocalGroup::farewell_tries; ++i) {
    job.now_us += us_per_s;
    job.begin();
    for (const LocalGroup::ClientId id : {1, 2, 3})
      job.serve(id);
    job.end_if_over();
  }
  CHECK_FALSE(job.group.needs(4));
  job.trainers.erase(4);
  gpus.wait_for_ranks(2);
  job.trainers.at(3).train(3 * lattice);
  job.settle();
  CHECK(job.copy()[0] == Approx(before + 2 * lattice));
  CHECK(job.trainers.at(3).x == Approx(before + 2 * lattice));
}

TEST_CASE("a sum of which no bound is known does not become the node's copy", "[node-mean]") {
  Gpus gpus(2);
  gpus.join_all();
  const NodeMean node(gpus.shared(0), gpus.shared_sums());
  // The client has changed its base after it was checked: each term is finite, but the sum is larger than is taken.
  const Floats y = gpus.holding(0, Values(elements, 1));
  const Floats snapshot = gpus.holding(1, Values(elements, 1));
  const Floats base = gpus.holding(1, Values(elements, -0x1p122F));
  const gossip::LocalMeanTask task{
      {{.snapshot = snapshot.get(), .base = base.get(), .take = Take::progress, .device = &gpus.at(1)}}};
  const auto outcomes = node.run(task, {y.get(), elements});
  CHECK_FALSE(outcomes[0].reached);
  CHECK(gpus.read(0, y.get(), elements) == Values(elements, 1));
}

TEST_CASE("sums over GPUs: those without a part add zeros, and one that joins stops nobody", "[node-mean]") {
  Gpus gpus(4);
  for (int gpu = 0; gpu < 3; ++gpu)
    REQUIRE(gpus.add(gpu));
  gpus.wait_for_ranks(3);
  Values total;
  CHECK(gpus.add_up({0, 2}, 1.5F, &total) == Result::done);
  CHECK(total == Values(elements, 3));
  CHECK(gpus.add_up({0, 1, 3}, 1) == Result::not_ready);  // GPU 3 has not joined yet
  gpus.be("join hangs");
  REQUIRE(gpus.add(3));
  for (int i = 0; i < 20; ++i) {
    CHECK(gpus.add_up({2, 1, 0}, 1, &total) == Result::done);
    CHECK(total == Values(elements, 3));
    CHECK(gpus.add_up({0, 3}, 1) == Result::not_ready);
  }
  gpus.be("");
  gpus.wait_for_ranks(4);
  CHECK(gpus.add_up({0, 3}, 1, &total) == Result::done);
  CHECK(total == Values(elements, 2));
}

TEST_CASE("a GPU has several users, and leaves the communicator with the last", "[node-mean]") {
  Gpus gpus(2);
  gpus.join_all();
  REQUIRE(gpus.add(1));
  gpus.sums().remove(1);
  gpus.sums().remove(7);  // unknown ones do no harm
  CHECK(gpus.add_up({0, 1}, 1) == Result::done);
  gpus.sums().remove(1);
  gpus.wait_for_ranks(1);
  CHECK(gpus.add_up({0, 1}, 1) == Result::not_ready);
  gpus.sums().remove(0);
  gpus.wait_for_ranks(0);
  CHECK(fake_counts().communicators == 0);
}

TEST_CASE("a sum that hangs holds up only who asked for it, and no longer than it may take", "[node-mean]") {
  SumLimits limits = calm;
  limits.reducer.reduce_us = 2 * us_per_s;
  limits.turn_us = 1000;
  Gpus gpus(2, limits);
  gpus.join_all();
  gpus.be("sums hang");
  const auto at_last = [&] {  // it may take a few attempts to have a turn in so short a time
    Result result = Result::not_ready;
    wait_until([&] { return (result = gpus.add_up({0, 1}, 1)) != Result::not_ready; });
    return result;
  };
  auto first = std::async(std::launch::async, at_last);
  wait_until([&] { return gpus.sums().status().counters.reductions > 0; });
  CHECK(gpus.add_up({0, 1}, 1) == Result::not_ready);
  SECTION("it ends after all") {
    gpus.be("");
    CHECK(first.get() == Result::done);
  }
  SECTION("it does not") {
    CHECK(first.get() == Result::failed);
    CHECK(gpus.sums().status().trouble.find("in time") != std::string::npos);
    gpus.be("");
    CHECK(at_last() == Result::done);
  }
  SECTION("a GPU goes meanwhile") {
    gpus.sums().remove(1);
    CHECK(first.get() == Result::failed);
    CHECK(gpus.add_up({0, 1}, 1) == Result::not_ready);
  }
}

TEST_CASE("a call of the communicator's that does not return holds nobody up, nor the end", "[node-mean]") {
  SumLimits limits = calm;
  limits.turn_us = limits.stop_us = 1000;
  auto gpus_there = std::make_unique<Gpus>(2, limits);
  Gpus& gpus = *gpus_there;
  gpus.be("join waits");
  for (const int gpu : {0, 1})
    REQUIRE(gpus.add(gpu));
  for (int i = 0; i < 10; ++i)
    CHECK(gpus.add_up({0, 1}, 1) == Result::not_ready);
  SECTION("it returns") {
    gpus.be("");
    wait_until([&] { return gpus.add_up({0, 1}, 1) == Result::done; });
  }
  SECTION("it does not, and the daemon ends") {
    gpus.end_sums();
    CHECK(fake_counts().contexts == 2);
    gpus.be("");
  }
  gpus_there = nullptr;  // only the thread still holds the GPUs
  wait_until([] { return fake_counts().contexts == 0; });
}
