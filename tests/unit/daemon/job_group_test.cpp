// Several clients of one job at one daemon: its own code, with its workers, beside trainers in threads of their own
// that serve what is due at their own speeds. Steps are multiples of a power of two, so that the mean of four is exact.

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <thread>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/played_host.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

constexpr float step = 1.0F / 1024;
constexpr std::uint64_t steps = 400;
constexpr std::chrono::seconds patience{60};

/// A training process: all its elements are one value, which it trains `steps` times and then only serves.
class Trainer {
 public:
  Trainer(float begin, std::chrono::microseconds pause) : pause_(pause), x_(memory_.plan.fragment_count) {
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      x_[f].assign(256, begin);
      std::copy(x_[f].begin(), x_[f].end(), memory_.buffer(f, 0));
    }
    memory_.seal();
  }
  void start() {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        train();
        serve();
        std::this_thread::sleep_for(pause_);
      }
    });
  }
  void stop() { thread_ = {}; }
  std::atomic<bool> may_train{true};

  [[nodiscard]] const test::TestMemory& memory() const { return memory_; }
  [[nodiscard]] bool trained() const { return memory_.header().clock.load() >= steps; }
  [[nodiscard]] bool running() const {
    return memory_.header().state.load() == static_cast<unsigned>(layout::RunState::running);
  }
  /// What it has published: element 0 of the last fragment.
  [[nodiscard]] float published() const { return published_.load(); }

 private:
  void train() {
    // Not before it has the job's model: what it does before is for nothing.
    if (!may_train.load() || !running() || trained()) return;
    for (auto& fragment : x_) {
      for (float& x : fragment)
        x += step;
    }
    memory_.header().clock.fetch_add(1);
  }
  void serve() {
    for (std::uint32_t f = 0; f < x_.size(); ++f) {
      auto word = layout::Word::unpack(memory_.fragment(f).word.load(std::memory_order_acquire));
      if (!word.with_client) continue;
      const float* correction = memory_.buffer(f, word.correction);
      float* snapshot = memory_.buffer(f, word.spare());
      for (std::size_t e = 0; e < x_[f].size(); ++e) {
        if (word.correction_valid) x_[f][e] = (word.replace ? 0.0F : x_[f][e]) + correction[e];
        snapshot[e] = x_[f][e];
      }
      const layout::Word next{
          .generation = word.generation + 1, .publication = word.spare(), .correction = word.correction};
      if (f + 1 == x_.size()) published_ = snapshot[0];
      memory_.fragment(f).publication_clock.store(memory_.header().clock.load());
      memory_.fragment(f).word.store(next.pack(), std::memory_order_release);
    }
  }

  std::chrono::microseconds pause_;
  test::TestMemory memory_{{{"weights", layout::Role::param, {4 * 256}}}};
  std::vector<std::vector<float>> x_;
  std::atomic<float> published_{std::numeric_limits<float>::max()};
  std::jthread thread_;
};

/// The daemon: one job, its loop turned by the test.
class Daemon : private test::PlayedHost {
 public:
  /// `resume`: its clients were a former one's.
  explicit Daemon(bool resume = false) : resume_(resume) {}
  /// As if killed between two turns of its loop: nobody is told.
  ~Daemon() override { workers_.stop(); }
  std::shared_ptr<ClientSession> attach(const Trainer& trainer) {
    const std::uint64_t bytes = trainer.memory().plan.total_bytes;
    auto mapped = ClientMemory::map(trainer.memory().fd.get(), bytes, bytes);
    REQUIRE(mapped);
    auto session = std::make_shared<ClientSession>(std::move(*mapped), 17, 0, resume_, ++number_);
    if (job_) {
      REQUIRE(job_->add(session));
    } else {
      GossipOptions options;
      options.period_ms = 2;
      options.time_share = 0;
      auto job = Job::make(*this, session, options, counter_, 7);
      REQUIRE(job);
      job_ = *job;
      job_->start();
    }
    sessions_.push_back(session);
    return session;
  }
  void detach(const std::shared_ptr<ClientSession>& session) {
    CHECK(job_->detached(*session));
    std::erase(sessions_, session);
  }
  template <class Condition>
  void run_until(
      Condition condition, std::function<std::string()> what = [] { return std::string(); }) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) FAIL(what());
      loop_.restart();
      loop_.poll();
      for (const auto& session : sessions_)
        job_->woken(*session);
      job_->tick(true);
      std::this_thread::yield();
    }
  }
  [[nodiscard]] JobStatus status() const { return job_->status(); }

 private:
  [[nodiscard]] TimeUs now_us() const override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  }
  [[nodiscard]] TimeUs began_us() const override { return began_us_; }
  [[nodiscard]] Workers& workers() override { return workers_; }

  bool resume_;
  const TimeUs began_us_ = now_us();
  asio::io_context loop_;
  Workers workers_{loop_, 2};
  gossip::ExchangeCounter counter_{1};
  std::uint64_t number_ = 0;
  std::vector<std::shared_ptr<ClientSession>> sessions_;
  std::shared_ptr<Job> job_;
};

}  // namespace

TEST_CASE("clients of a job that train at their own speeds end at the mean of what they learned, exactly") {
  using std::chrono::microseconds;
  Trainer fast(2, microseconds(20));
  Trainer middle(9, microseconds(100));
  Trainer slow(-5, microseconds(700));
  Trainer late(0, microseconds(50));
  Daemon daemon;
  const std::vector<Trainer*> all = {&fast, &middle, &slow, &late};
  daemon.attach(fast);
  daemon.attach(middle);  // while the first one joins
  daemon.attach(slow);
  daemon.attach(late);
  for (Trainer* trainer : all) {
    trainer->may_train = false;  // until all take part: before, their shares would be larger
    trainer->start();
  }
  daemon.run_until([&] { return std::all_of(all.begin(), all.end(), [](Trainer* t) { return t->running(); }); });
  for (Trainer* trainer : all)
    trainer->may_train = true;
  daemon.run_until([&] { return std::all_of(all.begin(), all.end(), [](Trainer* t) { return t->trained(); }); });
  const float expected = 2 + static_cast<float>(steps) * step;
  const auto at_expected = [&](Trainer* trainer) { return trainer->published() == Approx(expected).epsilon(1e-6); };
  daemon.run_until([&] { return std::all_of(all.begin(), all.end(), at_expected); },
                   [&] {
                     std::string text;
                     for (Trainer* t : all)
                       text += std::to_string((t->published() - 2) * 1024) + " clock " +
                               std::to_string(t->memory().header().clock.load()) + "; ";
                     return text;
                   });
  CHECK(daemon.status().processes.size() == 4);
  CHECK(daemon.status().clock == Approx(static_cast<double>(steps)).margin(4));
}

TEST_CASE("daemons die among several clients of a job: what these learned counts once at most, and most of it does") {
  std::array<Trainer, 3> trainers{
      {{1, std::chrono::microseconds(100)}, {5, std::chrono::microseconds(250)}, {9, std::chrono::microseconds(150)}}};
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

TEST_CASE("a client of a job goes in the middle, whoever it is, and another comes") {
  const std::size_t leaver = GENERATE(0, 1);
  Daemon daemon;
  std::array<Trainer, 2> first{{{1, std::chrono::microseconds(50)}, {7, std::chrono::microseconds(80)}}};
  std::vector<std::shared_ptr<ClientSession>> sessions;
  for (Trainer& trainer : first)
    sessions.push_back(daemon.attach(trainer));
  for (Trainer& trainer : first)
    trainer.start();
  Trainer& stays = first[1 - leaver];
  daemon.run_until([&] { return first[leaver].memory().header().clock.load() > steps / 4; });
  first[leaver].stop();
  daemon.detach(sessions[leaver]);
  Trainer late(-50, std::chrono::microseconds(50));
  daemon.attach(late);
  late.start();
  daemon.run_until([&] { return stays.trained() && late.trained(); });
  daemon.run_until([&] { return std::abs(stays.published() - late.published()) < step; });
  CHECK(stays.published() > 1 + steps * step * 0.5F);
  CHECK(stays.published() < 1 + steps * step * 2);
}
