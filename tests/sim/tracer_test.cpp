// The tracer in whole replicas (gossip/replica/tracer.hpp): with delays, refusals and weights, its estimate follows how
// the models come together.

#include <cmath>
#include <span>
#include <vector>

#include "catch.hpp"
#include "tools/sim/cluster.hpp"

namespace gossamer::sim {
namespace {

struct World {
  /// `trains`: models move by chance, as far as to be told apart by any codec; else they only come together.
  World(std::size_t nodes, gossip::PartnerPolicy policy, Codec codec, bool trains)
      : network(schedule, gossip::Random(1), nodes, {}),
        cluster({.replica = {.codec = codec, .period_us = 20'000, .partners = {.policy = policy}}, .seed = 2}, schedule,
                network) {
    gossip::Random random(3);
    for (std::size_t i = 0; i < nodes; ++i) {
      std::vector<float> values(1024);
      for (float& value : values)
        value = static_cast<float>(random.uniform() - 0.5);
      cluster.add_node(values, [own = gossip::Random(10 + i), trains](std::span<float> model) mutable -> std::uint64_t {
        for (float& value : model)
          if (trains) value += static_cast<float>(1e-3 * (own.uniform() - 0.5));
        return 32;
      });
      cluster.start_daemon(i, false);
    }
    cluster.link_all();
  }
  /// How fast the models approach their mean, in the root mean square, between two moments.
  double decay_per_s(TimeUs from_us, TimeUs to_us) {
    cluster.run_until(from_us);
    const double before = cluster.distance();
    cluster.run_until(to_us);
    return std::log(before / cluster.distance()) / 2 / (static_cast<double>(to_us - from_us) / us_per_s);
  }
  double mean_estimate() {
    double sum = 0;
    for (std::size_t i = 0; i < cluster.size(); ++i) {
      const auto estimate = cluster.node(i).replica->tracer().estimate(cluster.now_us());
      REQUIRE(estimate);
      sum += estimate->per_s / static_cast<double>(cluster.size());
    }
    return sum;
  }

  Schedule schedule;
  Network network;
  Cluster cluster;
};

}  // namespace

TEST_CASE("Replicas know how fast their models come together", "[figures]") {
  struct Case {
    const char* name;
    std::size_t nodes;
    gossip::PartnerPolicy policy;
    TimeUs from_us;
    TimeUs to_us;
  };
  const Case cases[] = {
      {"ring of 12", 12, gossip::PartnerPolicy::ring, 300'000, 1'500'000},
      {"random, 12", 12, gossip::PartnerPolicy::random, 50'000, 250'000},
      {"exponential, 16", 16, gossip::PartnerPolicy::one_peer_exponential, 50'000, 250'000},
  };
  for (const Case& one : cases) {
    World models(one.nodes, one.policy, Codec::f32, false);
    const double decay = models.decay_per_s(one.from_us, one.to_us);
    for (const Codec codec : {Codec::f32, Codec::q8}) {
      World world(one.nodes, one.policy, codec, true);
      world.cluster.run_until(30 * us_per_s);
      INFO(one.name << ": the models by " << decay << " a second, estimated " << world.mean_estimate());
      CHECK(world.mean_estimate() == Approx(decay).epsilon(0.35));
    }
  }
}

TEST_CASE("Where nothing but the codec's noise is left to average, little of it is taken, and the tracer says so",
          "[figures]") {
  World trains(8, gossip::PartnerPolicy::random, Codec::q8, true);
  World rests(8, gossip::PartnerPolicy::random, Codec::q8, false);
  trains.cluster.run_until(30 * us_per_s);
  rests.cluster.run_until(30 * us_per_s);
  CHECK(rests.mean_estimate() < 0.7 * trains.mean_estimate());
}

TEST_CASE("Where links break so that two parts are left, each knows its own rate and rounds that differ", "[figures]") {
  World world(8, gossip::PartnerPolicy::random, Codec::q8, true);
  world.cluster.run_until(20 * us_per_s);
  CHECK(world.cluster.node(0).replica->tracer().round() > 0);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 4; j < 8; ++j)
      world.cluster.unlink(i, j);
  world.cluster.run_until(60 * us_per_s);
  std::size_t differ = 0;
  for (int k = 0; k < 10; ++k) {
    world.cluster.run_until(world.cluster.now_us() + 2 * us_per_s);
    differ +=
        world.cluster.node(0).replica->tracer().round() != world.cluster.node(4).replica->tracer().round() ? 1 : 0;
  }
  CHECK(differ == 10);
  CHECK(world.mean_estimate() > 0);
  // One link joins the two parts again.
  world.cluster.link(0, 4);
  world.cluster.run_until(world.cluster.now_us() + 20 * us_per_s);
  std::size_t same = 0;
  for (int k = 0; k < 10; ++k) {
    world.cluster.run_until(world.cluster.now_us() + 2 * us_per_s);
    same += world.cluster.node(1).replica->tracer().round() == world.cluster.node(5).replica->tracer().round() ? 1 : 0;
  }
  CHECK(same > 5);
}

}  // namespace gossamer::sim
