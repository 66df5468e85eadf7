#include "tools/sim/hunt/rate_scenario.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "gossip/codec/lattice.hpp"
#include "tools/sim/cluster.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t rate_fragment_elements = 512;
constexpr TimeUs rate_warm_us = 30 * us_per_s;
constexpr TimeUs rate_us = 120 * us_per_s;
constexpr TimeUs far_latency_us = 3 * us_per_s;
constexpr std::uint64_t least_percent = 35;  // of the exchanges that a trainer has without companions
constexpr float training_rate = 0.002F;      // part of the way to its goal that a trainer goes in a step
constexpr float pulling_value = 2;           // each value of who pulls
// Part of the way from its goal to those that pull that a trainer may be.
constexpr double drawn_by_one = 0.1;
constexpr double drawn_by_more = 0.25;
constexpr std::size_t least_to_judge = 3;  // one that pulls may draw one of two trainers away

enum class Companion { keeps, follows, silent, declines, stalled, paused, nan, far, pulls };
constexpr const char* companion_names[] = {"keeps the job",  "only follows",         "answers nothing",
                                           "turns all down", "has a stalled client", "stands still",
                                           "holds NaN",      "is far away",          "pulls"};

struct RateDraw {
  std::uint64_t seed = 0;
  std::size_t trainers = 2;
  std::vector<Companion> companions = {};
  bool one_sponsor = false;
  ClusterOptions cluster = {};
  PathConditions path = {};

  [[nodiscard]] std::ptrdiff_t pulling() const { return std::ranges::count(companions, Companion::pulls); }
};

RateDraw draw_rate(std::uint64_t seed) {
  gossip::Random random(seed);
  RateDraw draw{.seed = seed, .trainers = 2 + random.below(4)};
  for (std::size_t left = 1 + random.below(draw.trainers / 2); left > 0; --left)
    draw.companions.push_back(static_cast<Companion>(random.below(std::size(companion_names))));
  draw.one_sponsor = chance(random, 0.2);
  ClusterOptions& cluster = draw.cluster;
  cluster.elements = rate_fragment_elements * (1 + random.below(8));
  cluster.certified = chance(random, 0.7) || draw.pulling() > 0;  // others trust their members
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
    cluster_.on_event = [this](const Cluster::Event& event) {
      acknowledge(event);
      count(event);
    };
    cluster_.tamper = [this](std::size_t from, std::size_t, Message& message) { return passes(from, message); };
    for (std::size_t i = 0; i < nodes(accompanied); ++i)
      add_node(i);
    cluster_.link_all();
  }

  /// The number of exchanges of each trainer after the first ones.
  std::vector<std::uint64_t> run() {
    cluster_.run_until(rate_warm_us);
    exchanges_.assign(draw_.trainers, 0);
    cluster_.run_until(rate_warm_us + rate_us / 2);
    while (schedule_.now_us() < rate_warm_us + rate_us) {
      cluster_.run_until(schedule_.now_us() + us_per_s);
      most_drawn_ = std::max(most_drawn_, drawn());
    }
    return exchanges_;
  }
  [[nodiscard]] std::uint64_t events() const { return schedule_.events(); }
  /// The largest part of the way from its goal to the model of who pulls that the first trainer was found at, in the
  /// second half of the time.
  [[nodiscard]] double most_drawn() const { return most_drawn_; }

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
    if (is(i, Companion::pulls)) schedule_.after(us_per_s, [this, i] { pull(i); });
  }

  /// Asks the first trainer for exchanges of all fragments, four times as often as others do, with a model that stays
  /// as it is.
  void pull(std::size_t i) {
    constexpr std::size_t blocks = rate_fragment_elements / block_elements;
    constexpr std::int8_t limit_exponent = 10;  // takes differences up to 2^10
    ExchangeRequest request{.codec = Codec::f32, .block_count = blocks};
    request.job = cluster_.node(0).replica->own_info().job;
    request.side = Bytes::adopt(std::vector<std::int8_t>(side_bytes(Codec::f32, blocks), limit_exponent));
    request.values = Bytes::adopt(std::vector<float>(rate_fragment_elements, pulling_value));
    for (; request.fragment < cluster_.fragments(); ++request.fragment) {
      request.counter = ++pulls_;
      cluster_.send(i, 0, request);
    }
    schedule_.after(draw_.cluster.replica.period_us / 4, [this, i] { pull(i); });
  }

  /// What training alone leads to.
  static float goal(std::size_t i, std::size_t element) {
    return std::sin(static_cast<float>(element)) / 2 + std::sin(static_cast<float>(element * (i + 2))) / 50;
  }

  [[nodiscard]] double drawn() const {
    const std::vector<double> model = cluster_.whole(0);
    double square = 0;
    double whole = 0;
    for (std::size_t e = 0; e < model.size(); ++e) {
      square += std::pow(model[e] - goal(0, e), 2);
      whole += std::pow(pulling_value - goal(0, e), 2);
    }
    return std::sqrt(square / whole);
  }

  void put_far_away(std::size_t i) {
    for (std::size_t j = 0; j < i; ++j) {
      network_.set_path(i, j, {.latency_us = far_latency_us});
      network_.set_path(j, i, {.latency_us = far_latency_us});
    }
  }

  std::uint64_t train(std::size_t i, std::span<float> values) {
    for (std::size_t e = 0; e < values.size(); ++e)
      values[e] += training_rate * (goal(i, e) - values[e]) + static_cast<float>(0.01 * (random_.uniform() - 0.5));
    if (is(i, Companion::nan)) values[0] = std::numeric_limits<float>::quiet_NaN();
    return 1;
  }

  bool passes(std::size_t from, Message& message) {
    const bool report = std::holds_alternative<JobInfo>(message);
    auto* const request = std::get_if<ExchangeRequest>(&message);
    if (fault_ == RateFault::untold && request != nullptr) request->usual = 0;
    if (fault_ == RateFault::lossy && !report) return chance(random_, 0.3);
    if (is(from, Companion::silent)) return report;
    // Its own replica exchanges nothing.
    if (is(from, Companion::pulls))
      return report || std::holds_alternative<ExchangeAck>(message) || (request != nullptr && request->seed == 0);
    if (!is(from, Companion::declines)) return true;
    auto* const reply = std::get_if<ExchangeReply>(&message);
    if (reply != nullptr)
      *reply = {.counter = reply->counter, .job = reply->job, .fragment = reply->fragment, .codec = reply->codec};
    return report || reply != nullptr;
  }

  /// Who pulls ends its exchanges properly.
  void acknowledge(const Cluster::Event& event) {
    if (event.kind != Cluster::Event::Kind::delivered || !is(event.node, Companion::pulls)) return;
    const auto* const reply = std::get_if<ExchangeReply>(event.message);
    if (reply != nullptr && reply->status == ReplyStatus::done)
      cluster_.send(event.node, event.other, ExchangeAck{reply->counter});
  }

  /// Exchanges with who pulls do not count.
  void count(const Cluster::Event& event) {
    const bool ended = event.kind == Cluster::Event::Kind::answered || event.kind == Cluster::Event::Kind::concluded;
    if (!ended || !event.done || event.node >= exchanges_.size()) return;
    if (!is(number_of(event.exchange.initiator), Companion::pulls)) ++exchanges_[event.node];
  }

  const RateDraw& draw_;
  RateFault fault_;
  gossip::Random random_;
  Schedule schedule_;
  Network network_;
  Cluster cluster_;
  std::vector<std::uint64_t> exchanges_;
  std::uint64_t pulls_ = 0;
  double most_drawn_ = 0;
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
  const double tolerance = draw.pulling() > 1 ? drawn_by_more : drawn_by_one;
  if (draw.pulling() > 0 && draw.trainers >= least_to_judge && accompanied.most_drawn() > tolerance) {
    throw std::runtime_error(fmt::format("trainer 0 of {} was drawn {:.0f} % of the way to {}", draw.trainers,
                                         100 * accompanied.most_drawn(), company(draw)));
  }
  return outcome;
}

}  // namespace gossamer::sim
