#include "tools/sim/hunt/rate_scenario.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tools/sim/cluster.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t rate_fragment_elements = 512;
constexpr TimeUs rate_warm_us = 30 * us_per_s;
constexpr TimeUs rate_us = 120 * us_per_s;
constexpr TimeUs far_latency_us = 3 * us_per_s;
constexpr std::uint64_t least_percent = 35;  // of the exchanges that a trainer has without companions

enum class Companion { keeps, follows, silent, declines, stalled, paused, nan, far };
constexpr const char* companion_names[] = {"keeps the job",        "only follows", "answers nothing", "turns all down",
                                           "has a stalled client", "stands still", "holds NaN",       "is far away"};

struct RateDraw {
  std::uint64_t seed = 0;
  std::size_t trainers = 2;
  std::vector<Companion> companions = {};
  bool certified = false;
  bool one_sponsor = false;
  ClusterOptions cluster = {};
  PathConditions path = {};
};

RateDraw draw_rate(std::uint64_t seed) {
  gossip::Random random(seed);
  RateDraw draw{.seed = seed, .trainers = 2 + random.below(4)};
  for (std::size_t left = 1 + random.below(draw.trainers / 2); left > 0; --left)
    draw.companions.push_back(static_cast<Companion>(random.below(std::size(companion_names))));
  draw.one_sponsor = chance(random, 0.2);
  ClusterOptions& cluster = draw.cluster;
  cluster.elements = rate_fragment_elements * (1 + random.below(8));
  cluster.certified = chance(random, 0.7);
  cluster.step_us = between(random, 1'000, 20'000);
  cluster.seed = random.next();
  cluster.replica.period_us = between(random, 20, 200) * us_per_ms;
  constexpr Codec codecs[] = {Codec::q8, Codec::q4, Codec::f32};
  cluster.replica.codec = codecs[random.below(3)];
  draw.path.latency_us = between(random, 100, 20'000);
  return draw;
}

/// The trainers, with or without their companions.
class RateRun {
 public:
  RateRun(const RateDraw& draw, bool accompanied, RateFault fault)
      : draw_(draw),
        fault_(fault),
        random_(draw.seed ^ 0x4a7eULL),
        network_(schedule_, gossip::Random(draw.seed + 1), nodes(accompanied), draw.path),
        cluster_(draw.cluster, schedule_, network_) {
    cluster_.on_event = [this](const Cluster::Event& event) { count(event); };
    cluster_.tamper = [this](std::size_t from, std::size_t, Message& message) { return passes(from, message); };
    for (std::size_t i = 0; i < nodes(accompanied); ++i)
      add_node(i);
    cluster_.link_all();
  }

  /// The number of exchanges of each trainer after the first ones.
  std::vector<std::uint64_t> run() {
    cluster_.run_until(rate_warm_us);
    exchanges_.assign(draw_.trainers, 0);
    cluster_.run_until(rate_warm_us + rate_us);
    return exchanges_;
  }
  [[nodiscard]] std::uint64_t events() const { return schedule_.events(); }

 private:
  [[nodiscard]] std::size_t nodes(bool accompanied) const {
    return draw_.trainers + (accompanied ? draw_.companions.size() : 0);
  }
  [[nodiscard]] bool is(std::size_t i, Companion kind) const {
    return i >= draw_.trainers && draw_.companions[i - draw_.trainers] == kind;
  }

  void add_node(std::size_t i) {
    std::vector<float> model(draw_.cluster.elements);
    for (float& value : model)
      value = static_cast<float>(random_.uniform() - 0.5);
    cluster_.add_node(model, [this, i](std::span<float> values) { return train(i, values); });
    Cluster::Node& node = cluster_.node(i);
    node.follows = is(i, Companion::follows);
    node.keeps = is(i, Companion::keeps) || node.follows;
    if (draw_.one_sponsor && i >= draw_.trainers) node.sponsor = 1;
    cluster_.start_daemon(i, false);
    node.client.stalled = is(i, Companion::stalled);
    if (is(i, Companion::far)) put_far_away(i);
    if (is(i, Companion::paused)) schedule_.after(us_per_s, [this, i] { cluster_.pause(i); });
  }

  void put_far_away(std::size_t i) {
    for (std::size_t j = 0; j < i; ++j) {
      network_.set_path(i, j, {.latency_us = far_latency_us});
      network_.set_path(j, i, {.latency_us = far_latency_us});
    }
  }

  std::uint64_t train(std::size_t i, std::span<float> values) {
    for (float& value : values)
      value += static_cast<float>(0.01 * (random_.uniform() - 0.5));
    if (is(i, Companion::nan)) values[0] = std::numeric_limits<float>::quiet_NaN();
    return 1;
  }

  bool passes(std::size_t from, Message& message) {
    const bool report = std::holds_alternative<JobInfo>(message);
    if (fault_ == RateFault::lossy && !report) return chance(random_, 0.3);
    if (is(from, Companion::silent)) return report;
    if (!is(from, Companion::declines)) return true;
    auto* const reply = std::get_if<ExchangeReply>(&message);
    if (reply != nullptr)
      *reply = {.counter = reply->counter, .job = reply->job, .fragment = reply->fragment, .codec = reply->codec};
    return report || reply != nullptr;
  }

  void count(const Cluster::Event& event) {
    const bool ended = event.kind == Cluster::Event::Kind::answered || event.kind == Cluster::Event::Kind::concluded;
    if (ended && event.done && event.node < exchanges_.size()) ++exchanges_[event.node];
  }

  const RateDraw& draw_;
  RateFault fault_;
  gossip::Random random_;
  Schedule schedule_;
  Network network_;
  Cluster cluster_;
  std::vector<std::uint64_t> exchanges_;
};

std::string company(const RateDraw& draw) {
  std::string text;
  for (const Companion companion : draw.companions)
    text += fmt::format("{}one that {}", text.empty() ? "" : " and ", companion_names[static_cast<int>(companion)]);
  return text;
}

}  // namespace

RateOutcome run_rate_scenario(std::uint64_t seed, RateFault fault) {
  const RateDraw draw = draw_rate(seed);
  RateRun alone(draw, false, RateFault::none);
  const std::vector<std::uint64_t> without = alone.run();
  RateRun accompanied(draw, true, fault);
  const std::vector<std::uint64_t> with = accompanied.run();
  RateOutcome outcome{.events = alone.events() + accompanied.events(), .companions = draw.companions.size()};
  for (std::size_t i = 0; i < draw.trainers; ++i) {
    outcome.exchanges += with[i];
    if (100 * with[i] < least_percent * without[i]) {
      throw std::runtime_error(fmt::format(
          "trainer {} of {} has exchanged {} times by itself with the others, and {} times beside {}{}", i,
          draw.trainers, without[i], with[i], company(draw), draw.cluster.certified ? ", with certificates" : ""));
    }
  }
  return outcome;
}

}  // namespace gossamer::sim
