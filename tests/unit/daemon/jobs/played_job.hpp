// A job at a daemon as tests drive it: the daemon's own code, with its workers, and trainers in threads of their own
// that serve what is due. Their buffers may be in the memory of played GPUs (tests/unit/daemon/device/fake_gpus.hpp).

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "daemon/clients/devices.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/device/fake_gpus.hpp"
#include "tests/unit/daemon/jobs/played_host.hpp"
#include "tests/unit/daemon/test_client.hpp"

namespace gossamer::daemon::test {

inline constexpr float step = 1.0F / 1024;
inline constexpr std::uint64_t steps = 400;
inline constexpr std::chrono::seconds patience{60};

/// A training process. All elements of its model have one value. It trains `steps` times, and then only serves.
class Trainer {
 public:
  /// `gpu`: the fake GPU that has its buffers in its memory.
  Trainer(float begin, std::chrono::microseconds pause, std::optional<int> gpu = std::nullopt)
      : pause_(pause), x_(memory_.plan.fragment_count) {
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      x_[f].assign(256, begin);
      std::copy(x_[f].begin(), x_[f].end(), memory_.buffer(f, 0));
    }
    memory_.seal();
    if (gpu) memory_.move_to_device(device::fake::uuid_of(*gpu));
  }
  void start() {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        turn();
        std::this_thread::sleep_for(pause_);
      }
    });
  }
  /// Trains a step, if it may, and serves what is due. The thread calls it, or the test while there is no thread.
  void turn() {
    train();
    serve();
  }
  void stop() { thread_ = {}; }
  std::atomic<bool> may_train{true};
  std::atomic<int> wake{-1};  ///< if there is one, the eventfd that it rings after publishing

  [[nodiscard]] const TestMemory& memory() const { return memory_; }
  [[nodiscard]] bool trained() const { return memory_.header().clock.load() >= steps; }
  /// Whether it has all fragments.
  [[nodiscard]] bool all_due() const {
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      if (!layout::Word::unpack(memory_.fragment(f).word.load()).with_client) return false;
    }
    return true;
  }
  [[nodiscard]] bool running() const {
    return memory_.header().state.load() == static_cast<unsigned>(layout::RunState::running);
  }
  /// What it has published: element 0 of the last fragment.
  [[nodiscard]] float published() const { return published_.load(); }
  /// The elements of each fragment. Call it only while no thread runs.
  [[nodiscard]] const std::vector<std::vector<float>>& values() const { return x_; }

 private:
  void train() {
    // Training before it has the job's model would be lost.
    if (!may_train.load() || !running() || trained()) return;
    for (auto& fragment : x_) {
      for (float& x : fragment)
        x += step;
    }
    memory_.header().clock.fetch_add(1);
  }
  void serve() {
    bool served = false;
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      auto word = layout::Word::unpack(memory_.fragment(f).word.load(std::memory_order_acquire));
      if (!word.with_client) continue;
      std::uint64_t due = word.pack();
      word.serving = true;
      if (!memory_.fragment(f).word.compare_exchange_strong(due, word.pack())) continue;  // the daemon has recalled it
      const float* correction = memory_.buffer(f, word.correction);
      float* snapshot = memory_.buffer(f, word.spare());
      for (std::size_t e = 0; e < x_[f].size(); ++e) {
        if (word.correction_valid) x_[f][e] = (word.replace ? 0.0F : x_[f][e]) + correction[e];
        snapshot[e] = x_[f][e];
      }
      const layout::Word next{.generation = word.generation + 1,
                              .publication = word.spare(),
                              .correction = word.correction,
                              .commits = word.commits};
      if (f + 1 == x_.size()) published_ = snapshot[0];
      memory_.fragment(f).publication_clock.store(memory_.header().clock.load());
      memory_.fragment(f).word.store(next.pack(), std::memory_order_release);
      served = true;
    }
    const std::uint64_t one = 1;
    if (served && wake >= 0) (void)!::write(wake, &one, sizeof one);
  }

  std::chrono::microseconds pause_;
  TestMemory memory_{{{"weights", layout::Role::param, {4 * 256}}}};
  std::vector<std::vector<float>> x_;
  std::atomic<float> published_{std::numeric_limits<float>::max()};
  std::jthread thread_;
};

/// A daemon with one job. The test turns its loop. It may be linked to another daemon.
class Daemon : private PlayedHost {
 public:
  /// `resume`: its clients belonged to an earlier daemon. `other`: the node that it is linked to and knows at once.
  explicit Daemon(bool resume = false, Daemon* other = nullptr) : resume_(resume), other_(other) {
    id_.bytes[0] = other == nullptr ? 1 : 2;
    if (other != nullptr) other->other_ = this;
  }
  /// Ends as if killed between two turns of its loop: the other node is not told.
  ~Daemon() override {
    if (other_ != nullptr) other_->other_ = nullptr;
    workers_.stop();
  }
  std::shared_ptr<ClientSession> attach(const Trainer& trainer) {
    auto session = try_attach(trainer);
    REQUIRE(session);
    return *session;
  }
  std::expected<std::shared_ptr<ClientSession>, AttachRefusal> try_attach(const Trainer& trainer) {
    return try_attach(trainer.memory());
  }
  /// Attaches a client whose earlier session has ended.
  std::expected<std::shared_ptr<ClientSession>, AttachRefusal> try_attach_again(const Trainer& trainer) {
    return try_attach(trainer.memory(), true);
  }
  std::expected<std::shared_ptr<ClientSession>, AttachRefusal> try_attach(const TestMemory& offered,
                                                                          bool again = false) {
    ClientMemory memory = map(offered);
    if (const gossip::Device* const home = job_ ? job_->home_for(memory) : nullptr;
        home != nullptr && !memory.on_device()) {
      share(memory, [&](Devices::Answer answer) {
        devices_.pin(*home, memory.host_buffers(), memory.pages(), std::move(answer));
      });
    }
    const bool resume = resume_ || again;
    auto kept = resume ? std::static_pointer_cast<NodeMemory>(offered.kept) : nullptr;
    auto session =
        std::make_shared<ClientSession>(std::move(memory), Caller{17, 0, {}}, resume, ++number_, std::move(kept));
    if (job_) {
      if (auto added = job_->add(session); !added) return std::unexpected(added.error());
    } else {
      GossipOptions options;
      options.codec = codec;
      options.period_ms = 2;
      options.time_share = 0;
      options.outer_momentum = outer_momentum;
      options.outer_period_ms = 5;
      auto job = Job::make(*this, session, options, counter_, 7);
      if (!job) return std::unexpected(job.error());
      job_ = *job;
      job_->start({});
      if (other_ != nullptr && other_->job_) other_->job_->link_up(id_);
    }
    offered.kept = session->kept();
    sessions_.push_back(session);
    return session;
  }
  void detach(const std::shared_ptr<ClientSession>& session) {
    CHECK(job_->detached(*session));
    std::erase(sessions_, session);
  }
  /// Turns the loops of this daemon and of the linked one until the condition holds.
  template <class Condition>
  void run_until(
      Condition condition, std::function<std::string()> what = [] { return std::string(); }) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) FAIL(what());
      turn();
      if (other_ != nullptr) other_->turn();
      std::this_thread::yield();
    }
  }
  [[nodiscard]] JobStatus status() const { return job_->status(); }
  [[nodiscard]] Job& job() { return *job_; }
  [[nodiscard]] Devices& devices() { return devices_; }
  [[nodiscard]] device::NodeSums& sums() { return *sums_.shared(); }

  CodecChoice codec = CodecChoice::q8;
  double outer_momentum = 0;  ///< above 0: the daemon takes outer steps

 private:
  [[nodiscard]] NodeId id() const override { return id_; }
  [[nodiscard]] std::vector<NodeId> neighbours() const override {
    return other_ != nullptr && other_->job_ ? std::vector{other_->id_} : std::vector<NodeId>{};
  }
  bool send(const NodeId&, const Message& message) override {
    if (other_ == nullptr) return false;
    other_->inbox_.push_back(message);
    return true;
  }
  [[nodiscard]] TimeUs now_us() const override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  }
  [[nodiscard]] TimeUs began_us() const override { return began_us_; }
  [[nodiscard]] Workers& workers() override { return workers_; }
  [[nodiscard]] GpuSums* gpu_sums() override { return &sums_; }

  void turn() {
    loop_.restart();
    loop_.poll();
    if (!job_) return;
    for (Message& message : std::exchange(inbox_, {})) {
      if (std::holds_alternative<JobQuery>(message)) {  // the node answers it
        other_->inbox_.push_back(job_->info());
      } else {
        job_->received(other_->id_, std::move(message));
      }
    }
    for (const auto& session : sessions_)
      job_->woken(*session);
    job_->tick(true);
  }
  /// Calls `ask` again while a GPU is being opened, until the GPU's memory is shared.
  void share(ClientMemory& memory, const std::function<void(Devices::Answer)>& ask) {
    bool shared = false;
    bool asked = false;
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!shared) {
      if (std::chrono::steady_clock::now() > until) FAIL("no GPU");
      if (!std::exchange(asked, true)) {
        ask([&](std::expected<std::shared_ptr<DeviceMemory>, AttachRefusal> answer) {
          if (!answer) {
            INFO(answer.error().message);
            REQUIRE(answer.error().status == layout::AttachStatus::device_opening);
            asked = false;
            return;
          }
          memory.share(std::move(*answer));
          shared = true;
        });
      }
      loop_.restart();
      loop_.poll();
      std::this_thread::yield();
    }
  }
  ClientMemory map(const TestMemory& memory) {
    const std::uint64_t bytes = memory.plan.total_bytes;
    auto mapped = ClientMemory::map(memory.fd.get(), bytes, bytes);
    REQUIRE(mapped);
    if (memory.device) {
      share(*mapped, [&](Devices::Answer answer) {
        devices_.map(std::to_array(memory.device->offer.uuid), FileDescriptor(::dup(memory.device->descriptor.get())),
                     memory.device->bytes, std::move(answer));
      });
    }
    return std::move(*mapped);
  }

  bool resume_;
  NodeId id_;
  Daemon* other_;
  const TimeUs began_us_ = now_us();
  asio::io_context loop_;
  Devices devices_{loop_, {.plugin = GOSSAMER_FAKE_PLUGIN, .retry = {}}, log()};
  GpuSums sums_{log()};
  Workers workers_{loop_, 2};
  gossip::ExchangeCounter counter_{1};
  std::uint64_t number_ = 0;
  std::vector<Message> inbox_;
  std::vector<std::shared_ptr<ClientSession>> sessions_;
  std::shared_ptr<Job> job_;
};

/// Clients of one job, the first of which begins at 1, train to their end while daemons die one after the other. Checks
/// that their training counts at most once, and that most of it counts.
inline void train_while_daemons_die(std::array<Trainer, 3>& trainers) {
  auto daemon = std::make_unique<Daemon>();
  for (Trainer& trainer : trainers) {
    trainer.may_train = false;
    daemon->attach(trainer);
    trainer.start();
  }
  const auto all = [&](auto condition) { return std::all_of(trainers.begin(), trainers.end(), condition); };
  daemon->run_until([&] { return all([](const Trainer& t) { return t.running(); }); });
  for (Trainer& trainer : trainers)
    trainer.may_train = true;
  gossip::Random random(3);
  while (!all([](const Trainer& t) { return t.trained(); })) {
    std::uint64_t turns = random.next() % 2000;
    daemon->run_until([&] { return turns-- == 0; });
    daemon = nullptr;
    daemon = std::make_unique<Daemon>(true);
    for (std::size_t i = random.next() % 3, count = 0; count < 3; ++count, i = (i + 1) % 3)
      daemon->attach(trainers[i]);
  }
  const auto agree = [&] {
    return all([&](const Trainer& t) { return std::abs(t.published() - trainers[0].published()) < step / 64; });
  };
  std::uint64_t turns = 0;
  daemon->run_until([&] { return agree() && ++turns > 1000; });
  const float learned = (trainers[0].published() - 1) / step;
  INFO("learned " << learned << " of " << steps);
  CHECK(learned < steps * 1.001F);
  CHECK(learned > steps * 0.5F);
}

}  // namespace gossamer::daemon::test
