// Replicas whose clients keep lean memory: a fragment has a publication, and memory, only while something is done with
// it. Memory that was given back holds NaN here, so that whoever looks at it is found out.

#include <cmath>

#include "catch.hpp"
#include "tools/sim/cluster.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {
namespace {

constexpr double rounding = 2e-6;
constexpr std::size_t elements = 16 * 256;
constexpr std::size_t window = 4;  // how many of the 16 fragments may have memory

/// How many fragments have memory: what was given back is NaN.
std::size_t provided(const Cluster::Node& node) {
  return static_cast<std::size_t>(
      std::ranges::count_if(node.client.buffers, [](const auto& three) { return !std::isnan(three[0][0]); }));
}

struct World {
  World(std::size_t nodes, std::uint64_t seed, std::size_t lean_window = window, bool joins = false,
        double bytes_per_s = 0)
      : network(schedule, gossip::Random(seed), nodes, {}),
        cluster({.elements = elements,
                 .fragment_elements = 256,
                 .replica = {.period_us = 5'000, .bytes_per_s = bytes_per_s},
                 .lean_window = lean_window,
                 .seed = seed + 1},
                schedule, network),
        random(seed + 2) {
    for (std::size_t i = 0; i < nodes; ++i) {
      cluster.add_node(model());
      cluster.start_daemon(i, joins);
    }
    cluster.link_all();
    cluster.on_event = [this](const Cluster::Event& event) { look(event.node); };
  }
  std::vector<float> model() {
    std::vector<float> values(elements);
    for (float& value : values)
      value = static_cast<float>(random.uniform() - 0.5);
    return values;
  }
  /// Checks that no fragment without memory is read, and notes how many have memory at most.
  void look(std::size_t i) {
    const Cluster::Node& node = cluster.node(i);
    if (!node.replica) return;
    most = std::max(most, provided(node));
    sane = sane && std::ranges::all_of(node.client.model, [](float value) { return std::isfinite(value); });
  }
  [[nodiscard]] double drift(const std::vector<double>& before) const {
    const auto after = cluster.total();
    double largest = 0;
    for (std::size_t e = 0; e < before.size(); ++e)
      largest = std::max(largest, std::fabs(after[e] - before[e]));
    return largest;
  }

  Schedule schedule;
  Network network;
  Cluster cluster;
  gossip::Random random;
  std::size_t most = 0;
  bool sane = true;
};

}  // namespace

TEST_CASE("Lean replicas agree, their sum stays, and they keep to the window", "[figures]") {
  const std::size_t nodes = GENERATE(2, 4);
  CAPTURE(nodes);
  World world(nodes, 11);
  const auto before = world.cluster.total();
  const double apart = world.cluster.distance();
  world.cluster.run_until(6 * us_per_s);
  CHECK(world.cluster.distance() < apart * 1e-6);
  world.cluster.settle();
  CHECK(world.drift(before) < 4 * rounding);
  CHECK(world.cluster.count(&gossip::ReplicaCounters::unresolved) == 0);
  CHECK(world.most <= window);
  CHECK(world.most > 1);
  CHECK(world.sane);
}

TEST_CASE("A lean replica that nobody asks anything of has no memory", "[figures]") {
  World world(2, 12);
  world.cluster.run_until(us_per_s);
  CHECK(provided(world.cluster.node(0)) > 0);
  world.cluster.unlink(0, 1);
  world.cluster.run_until(15 * us_per_s);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(provided(world.cluster.node(i)) == 0);
    for (const auto& word : world.cluster.node(i).client.words)
      CHECK((word.empty && !word.with_client));
  }
}

TEST_CASE("Lean replicas answer most of what they are asked", "[figures]") {
  World world(4, 13);
  world.cluster.run_until(5 * us_per_s);
  const auto done = world.cluster.count(&gossip::ReplicaCounters::initiated);
  const auto busy = world.cluster.count(&gossip::ReplicaCounters::busy_received);
  CAPTURE(done, busy);
  CHECK(done > 1000);
  CHECK(busy < done / 2);
}

TEST_CASE("A lean replica that may send little asks its client for what it can send", "[figures]") {
  World world(2, 14, window, false, 40'000);
  world.cluster.run_until(20 * us_per_s);
  const auto published = world.cluster.count(&gossip::ReplicaCounters::publications);
  const auto done = world.cluster.count(&gossip::ReplicaCounters::initiated);
  const auto busy = world.cluster.count(&gossip::ReplicaCounters::busy_received);
  CAPTURE(published, done, busy);
  CHECK(done > 1000);
  CHECK(published <= 4 * done);  // either end's client gives its values, and then takes the correction
}

TEST_CASE("A newcomer takes a lean replica's model over into lean memory", "[figures]") {
  World world(3, 14);
  world.cluster.run_until(3 * us_per_s);
  const std::size_t i = world.cluster.add_node(world.model());
  world.network.add_node();
  world.cluster.start_daemon(i, true);
  CHECK(world.cluster.distance() > 0.01);
  world.cluster.link_all();
  world.cluster.run_until(5 * us_per_s);
  CHECK(world.cluster.node(i).replica->state() == ReplicaState::running);
  CHECK(world.cluster.distance() < 1e-6);
  CHECK(world.most <= window);
  CHECK(world.sane);
}

TEST_CASE("Lean founders agree on one model", "[figures]") {
  World world(3, 15, window, true);
  world.cluster.run_until(5 * us_per_s);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(world.cluster.node(i).replica->state() == ReplicaState::running);
  CHECK(world.cluster.distance() < 1e-6);
  CHECK(world.sane);
}

TEST_CASE("A daemon over lean memory that dies and comes back costs its client nothing it had", "[figures]") {
  World world(3, 16);
  TimeUs now_us = us_per_s;
  for (int time = 0; time < 20; ++time) {
    world.cluster.run_until(now_us += 200'000 + time * 777);
    world.cluster.kill_daemon(1);
    // The other nodes end the exchanges that were under way with it.
    world.cluster.declare_dead(0, 1);
    world.cluster.declare_dead(2, 1);
    world.cluster.run_until(now_us += 50'000);
    world.cluster.start_daemon(1, false);
    world.cluster.link_all();
  }
  world.cluster.run_until(now_us += 3 * us_per_s);
  CHECK(world.cluster.distance() < 1e-6);
  CHECK(world.most <= window);
  CHECK(world.sane);
}

TEST_CASE("Lean replicas that finish agree and know it", "[figures]") {
  World world(3, 17);
  world.cluster.run_until(us_per_s);
  for (std::size_t i = 0; i < 3; ++i)
    world.cluster.finish(i);
  world.cluster.run_until(6 * us_per_s);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(world.cluster.node(i).replica->finish_report().over);
  CHECK(world.sane);
}

TEST_CASE("What a leaver in lean memory learned stays with the others", "[figures]") {
  World world(4, 18);
  Cluster& cluster = world.cluster;
  auto before = cluster.total();
  for (double& value : before)
    value += 0.125;
  cluster.run_until(100'000);
  for (float& value : cluster.node(0).client.model)
    value += 0.125F;
  const auto sum_of_others = [&] {
    double sum = 0;
    for (std::size_t i = 1; i < 4; ++i) {
      for (const double value : cluster.whole(i))
        sum += value / static_cast<double>(elements);
    }
    return sum;
  };
  const double others_before = sum_of_others();
  cluster.leave(0, 10 * us_per_s);
  cluster.run_until(12 * us_per_s);
  const gossip::Replica& leaver = *cluster.node(0).replica;
  CHECK(leaver.idle());
  CHECK(leaver.handed_over());
  CHECK(leaver.fragments().handed_over() == 16);
  CHECK((sum_of_others() - others_before) / 0.125 > 0.5);
  cluster.settle();
  CHECK(world.drift(before) < 4 * rounding);
  CHECK(world.sane);
}

TEST_CASE("A lean replica whose client stands still turns requests down, and goes on when it does", "[figures]") {
  World world(3, 19);
  const auto before = world.cluster.total();
  world.cluster.run_until(us_per_s);
  world.cluster.node(0).client.stalled = true;
  world.cluster.run_until(10 * us_per_s);
  const auto done = world.cluster.node(0).replica->counters().answered;
  CHECK(world.cluster.node(0).replica->counters().busy_sent > 0);
  CHECK(world.cluster.node(1).replica->in_flight() <= 4);
  world.cluster.node(0).client.stalled = false;
  world.cluster.run_until(15 * us_per_s);
  CHECK(world.cluster.node(0).replica->counters().answered > done + 100);
  CHECK(world.cluster.distance() < 1e-6);
  world.cluster.settle();
  CHECK(world.drift(before) < 4 * rounding);
  CHECK(world.cluster.count(&gossip::ReplicaCounters::unresolved) == 0);
}

}  // namespace gossamer::sim
