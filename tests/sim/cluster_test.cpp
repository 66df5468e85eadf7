// The simulated cluster itself: replicas agree and keep their sum through what may happen to nodes.

#include "tools/sim/cluster.hpp"

#include "catch.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {
namespace {

constexpr double rounding = 2e-6;  // thousands of fp32 additions to numbers below 1

struct World {
  explicit World(std::size_t nodes, std::uint64_t seed, float clip = 0)
      : network(schedule, gossip::Random(seed), nodes, {}),
        cluster({.replica = {.period_us = 5'000, .clip = clip}, .seed = seed + 1}, schedule, network),
        random(seed + 2) {
    for (std::size_t i = 0; i < nodes; ++i) {
      cluster.add_node(model());
      cluster.start_daemon(i, false);
    }
    cluster.link_all();
  }
  std::vector<float> model() {
    std::vector<float> values(1024);
    for (float& value : values)
      value = static_cast<float>(random.uniform() - 0.5);
    return values;
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
};

}  // namespace

TEST_CASE("Simulated replicas agree and their sum stays") {
  World world(4, 1);
  const auto before = world.cluster.total();
  const double apart = world.cluster.distance();
  world.cluster.run_until(3 * us_per_s);
  CHECK(world.cluster.distance() < apart * 1e-6);
  world.cluster.settle();
  CHECK(world.drift(before) < 4 * rounding);
  CHECK(world.cluster.count(&gossip::ReplicaCounters::unresolved) == 0);
}

TEST_CASE("A daemon that dies and comes back costs its client nothing it had") {
  World world(3, 2);
  world.cluster.run_until(us_per_s);
  const double agreed = world.cluster.distance();
  world.cluster.kill_daemon(1);
  world.cluster.run_until(2 * us_per_s);
  CHECK(world.cluster.node(1).client.steps > 800);
  CHECK(world.cluster.distance() < agreed * 2 + 1e-9);
  world.cluster.start_daemon(1, false);
  world.cluster.link_all();
  const auto before = world.cluster.total();
  world.cluster.run_until(3 * us_per_s);
  CHECK(world.cluster.node(1).replica->counters().initiated > 100);
  world.cluster.settle();
  CHECK(world.drift(before) < 3 * rounding);
}

TEST_CASE("A newcomer takes the running model over") {
  World world(3, 3);
  world.cluster.run_until(2 * us_per_s);
  const std::size_t i = world.cluster.add_node(world.model());
  world.network.add_node();
  world.cluster.start_daemon(i, true);
  CHECK(world.cluster.distance() > 0.01);
  world.cluster.link_all();
  world.cluster.run_until(3 * us_per_s);
  CHECK(world.cluster.node(i).replica->state() == ReplicaState::running);
  CHECK(world.cluster.distance() < 1e-6);
}

TEST_CASE("A paused daemon handles everything when it goes on") {
  World world(3, 4);
  const auto before = world.cluster.total();
  world.cluster.run_until(100'000);
  world.cluster.pause(0);
  world.cluster.run_until(us_per_s);
  world.cluster.resume(0);
  world.cluster.run_until(3 * us_per_s);
  world.cluster.settle();
  CHECK(world.drift(before) < 3 * rounding);
  CHECK(world.cluster.count(&gossip::ReplicaCounters::unresolved) == 0);
}

TEST_CASE("Clipping lets a replica that was away come back to others that agree, where nobody trains") {
  World world(5, 5, 3);
  for (std::size_t i = 0; i < 4; ++i)
    world.cluster.unlink(i, 4);
  world.cluster.run_until(5 * us_per_s);
  for (std::size_t i = 1; i < 4; ++i)
    REQUIRE(world.cluster.node(i).client.model[0] == Approx(world.cluster.node(0).client.model[0]).margin(1e-5));
  REQUIRE(world.cluster.distance() > 0.01);
  const auto before = world.cluster.total();
  world.cluster.link_all();
  world.cluster.run_until(25 * us_per_s);
  CHECK(world.cluster.distance() < 1e-8);
  world.cluster.settle();
  CHECK(world.drift(before) < 5 * rounding);
}

TEST_CASE("Clipping holds a replica that never moves back for ever, where nobody trains") {
  World world(5, 6, 3);
  world.cluster.run_until(5 * us_per_s);
  const std::vector<float> stubborn = world.model();
  world.cluster.node(4).client.train = [&](std::span<float> values) {
    std::copy(stubborn.begin(), stubborn.end(), values.begin());
    return std::uint64_t{1};
  };
  const std::vector<float> agreed = world.cluster.node(0).client.model;
  world.cluster.run_until(60 * us_per_s);
  double apart = 0;
  double way = 0;
  for (std::size_t e = 0; e < agreed.size(); ++e) {
    const double moved = world.cluster.node(0).client.model[e] - agreed[e];
    apart += moved * moved;
    way += (double{stubborn[e]} - agreed[e]) * (double{stubborn[e]} - agreed[e]);
  }
  CAPTURE(std::sqrt(apart / way));
  CHECK(apart < 0.25 * 0.25 * way);
}

}  // namespace gossamer::sim
