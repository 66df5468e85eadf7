// What a replica's options promise, in a simulated cluster: messages lost on a standing link do no harm, rates hold,
// partners follow the rule, the cadence keeps to its share.

#include <map>
#include <set>

#include "catch.hpp"
#include "gossip/owner.hpp"
#include "tools/sim/cluster.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {
namespace {

using gossip::PartnerPolicy;
using gossip::ReplicaCounters;

struct World {
  /// The last `keepers` nodes hold the job without training it.
  World(std::size_t nodes, std::uint64_t seed, const gossip::ReplicaOptions& replica, PathConditions path = {},
        std::size_t keepers = 0)
      : network(schedule, gossip::Random(seed), nodes, path),
        cluster({.elements = 2048, .replica = replica, .seed = seed + 1}, schedule, network) {
    gossip::Random random(seed + 2);
    for (std::size_t i = 0; i < nodes; ++i) {
      std::vector<float> model(2048);
      for (float& value : model)
        value = static_cast<float>(random.uniform() - 0.5);
      cluster.add_node(model);
      cluster.node(i).keeps = i + keepers >= nodes;
      cluster.start_daemon(i, false);
    }
    cluster.link_all();
  }

  Schedule schedule;
  Network network;
  Cluster cluster;
};

double largest_change(const std::vector<double>& before, const std::vector<double>& after) {
  double largest = 0;
  for (std::size_t e = 0; e < before.size(); ++e)
    largest = std::max(largest, std::fabs(after[e] - before[e]));
  return largest;
}

}  // namespace

TEST_CASE("Messages lost on a standing link are said again, and nothing is lost or doubled") {
  const std::uint64_t seed = GENERATE(1, 2, 3);
  World world(4, seed, {.period_us = 20'000},
              {.latency_us = 2'000, .jitter_us = 1'000, .loss = 0.05, .duplicate = 0.05, .reorder = 0.05});
  const auto before = world.cluster.total();
  world.cluster.run_until(10 * us_per_s);
  CHECK(world.cluster.count(&ReplicaCounters::repeats_sent) > 50);
  CHECK(world.cluster.distance() < 1e-5);  // below this distance replicas rest
  world.network.set_default({.latency_us = 2'000});
  world.cluster.run_until(18 * us_per_s);
  world.cluster.settle();
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(world.cluster.node(i).replica->idle());
  CHECK(largest_change(before, world.cluster.total()) < 1e-5);
  CHECK(world.cluster.count(&ReplicaCounters::unresolved) == 0);
}

TEST_CASE("A replica sends no more bytes than it may, in all and to one neighbour") {
  const bool by_link = GENERATE(false, true);
  constexpr double rate = 200'000;
  gossip::ReplicaOptions options{.period_us = 0};
  (by_link ? options.link_bytes_per_s : options.bytes_per_s) = rate;
  World world(3, 5, options);
  world.cluster.run_until(20 * us_per_s);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto sent = static_cast<double>(world.cluster.node(i).replica->counters().payload_bytes_sent) / 20;
    const double allowed = by_link ? 2 * rate : rate;
    CAPTURE(by_link, i, sent);
    CHECK(sent < 1.05 * allowed);
    CHECK(sent > 0.8 * allowed);
  }
  CHECK(world.cluster.distance() < 1e-6);
}

TEST_CASE("Fragments of a large model are exchanged equally often under a tight rate") {
  World world(3, 6, {.period_us = 0, .bytes_per_s = 20'000});
  std::vector<int> exchanges(world.cluster.fragments());
  world.cluster.on_event = [&](const Cluster::Event& event) {
    if (event.kind == Cluster::Event::Kind::answered || event.kind == Cluster::Event::Kind::concluded)
      ++exchanges[event.fragment];
  };
  world.cluster.run_until(20 * us_per_s);
  const auto [least, most] = std::minmax_element(exchanges.begin(), exchanges.end());
  CHECK(*least > 20);
  CHECK(*most - *least <= *most / 5);
}

TEST_CASE("Partners follow the rule, and the replicas agree whichever it is", "[figures]") {
  const PartnerPolicy policy =
      GENERATE(PartnerPolicy::random, PartnerPolicy::ring, PartnerPolicy::torus, PartnerPolicy::hypercube,
               PartnerPolicy::one_peer_exponential, PartnerPolicy::base, PartnerPolicy::regular, PartnerPolicy::hub,
               PartnerPolicy::weighted);
  CAPTURE(gossip::policy_name(policy));
  World world(8, 7, {.period_us = 5'000, .partners = {.policy = policy}});
  std::set<std::pair<std::size_t, std::size_t>> pairs;
  world.cluster.on_event = [&](const Cluster::Event& event) {
    if (event.kind == Cluster::Event::Kind::answered) pairs.insert({event.other, event.node});
  };
  const double apart = world.cluster.distance();
  world.cluster.run_until(4 * us_per_s);
  CHECK(world.cluster.distance() < 1e-4 * apart);
  if (policy == PartnerPolicy::random) CHECK(pairs.size() == 56);
  if (policy == PartnerPolicy::hub) {
    // An exchange without the hub was a second choice, made when the hub was busy.
    CHECK(pairs.contains({7, 0}));
    CHECK(pairs.contains({0, 7}));
  }
}

TEST_CASE("A fragment is exchanged with its owner only, also after an owner's death", "[figures]") {
  constexpr std::size_t nodes = 6;
  const std::size_t keepers = GENERATE(0, 1, 2);
  CAPTURE(keepers);
  World world(nodes, 21, {.period_us = 5'000, .partners = {.policy = PartnerPolicy::owner}}, {}, keepers);
  std::vector<NodeId> owners;
  for (std::size_t i = keepers > 0 ? nodes - keepers : 0; i < nodes; ++i)
    owners.push_back(id_of(i));
  std::map<std::uint32_t, std::size_t> exchanges;
  const auto watch = [&](const Cluster::Event& event) {
    if (event.kind != Cluster::Event::Kind::answered) return;
    const NodeId owner = gossip::owner_of(event.fragment, owners);
    CHECK((id_of(event.node) == owner || id_of(event.other) == owner));
    ++exchanges[event.fragment];
  };
  const double apart = world.cluster.distance();
  world.cluster.run_until(50'000);  // by then every node knows of all others
  world.cluster.on_event = watch;
  world.cluster.run_until(4 * us_per_s);
  CHECK(world.cluster.distance() < 1e-4 * apart);
  CHECK(exchanges.size() == world.cluster.fragments());
  // A replica that can compare itself only with the owner believes it, however far apart they are.
  for (float& value : world.cluster.node(0).client.model)
    value += 3;
  world.cluster.run_until(world.cluster.now_us() + 4 * us_per_s);
  CHECK(world.cluster.distance() < 1e-4);

  if (keepers == 1) return;
  const std::size_t dead = number_of(gossip::owner_of(0, owners));
  world.cluster.on_event = {};
  world.cluster.kill_node(dead);
  for (std::size_t i = 0; i < nodes; ++i) {
    if (i != dead) world.cluster.declare_dead(i, dead);
  }
  world.cluster.run_until(world.cluster.now_us() + 50'000);
  std::erase(owners, id_of(dead));
  exchanges.clear();
  world.cluster.on_event = watch;
  world.cluster.run_until(world.cluster.now_us() + us_per_s);
  CHECK(exchanges.size() == world.cluster.fragments());
}

TEST_CASE("Clients with long steps are asked for all fragments that are due, and not for a few a step") {
  constexpr std::size_t fragments = 400;
  Schedule schedule;
  Network network(schedule, gossip::Random(3), 2, {});
  Cluster cluster({.elements = fragments * 256,
                   .fragment_elements = 256,
                   .replica = {.period_us = 50'000},
                   .step_us = 3 * us_per_s},
                  schedule, network);
  for (std::size_t i = 0; i < 2; ++i) {
    cluster.add_node(std::vector<float>(fragments * 256, static_cast<float>(i)));
    cluster.node(i).client.step.us = 3 * us_per_s;
    cluster.start_daemon(i, false);
  }
  cluster.link_all();
  cluster.run_until(10 * us_per_s);  // the time of three steps
  // Each has published all of its model at the beginning, and once more.
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(cluster.node(i).replica->counters().publications > 3 * fragments / 2);
}

TEST_CASE("Servers hold the mean of what late and unequal workers have trained") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8);
  const std::size_t keepers = GENERATE(1, 2);
  CAPTURE(codec_name(codec), keepers);
  constexpr std::size_t workers = 5;
  World world(workers + keepers, 31, {.codec = codec, .period_us = 5'000, .partners = {.policy = PartnerPolicy::owner}},
              {.latency_us = 30'000, .jitter_us = 10'000, .loss = 0.02, .duplicate = 0.02}, keepers);
  // The nodes have agreed on one model. Before that, what moves the model is not progress.
  for (int second = 0; second < 30 && (second < 3 || world.cluster.distance() > 1e-6); ++second)
    world.cluster.run_until(world.cluster.now_us() + us_per_s);
  REQUIRE(world.cluster.distance() <= 1e-6);
  const TimeUs begun_us = world.cluster.now_us();
  const std::vector<double> begun = world.cluster.whole(workers);
  std::uint64_t trained = 0;
  bool trains = true;
  for (std::size_t i = 0; i < workers; ++i) {
    world.cluster.node(i).client.speed = 1 / static_cast<double>(1 + i);
    world.cluster.node(i).client.train = [&](std::span<float> model) {
      for (float& value : model)
        value += trains ? 1e-4F : 0;
      trained += trains ? 1 : 0;
      return std::uint64_t{1};
    };
  }
  world.cluster.run_until(begun_us + 10 * us_per_s);
  trains = false;
  world.cluster.run_until(begun_us + 15 * us_per_s);
  CHECK(world.cluster.distance() < 1e-6);
  const double expected = 1e-4 * static_cast<double>(trained) / workers;
  const std::vector<double> end = world.cluster.whole(workers);
  for (const std::size_t e : {0UL, 700UL, 2047UL})
    CHECK(end[e] - begun[e] == Approx(expected).epsilon(0.05));
}

TEST_CASE("Replicas that weigh by their samples follow the weighted mean of what they train") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8);
  const bool weighs = GENERATE(true, false);
  CAPTURE(codec_name(codec), weighs);
  constexpr std::uint64_t samples[] = {3, 10, 40, 100};
  World world(std::size(samples), 32, {.codec = codec, .period_us = 5'000, .weigh_samples = weighs},
              {.latency_us = 1'000, .loss = 0.02, .duplicate = 0.02});
  bool trains = false;
  std::uint64_t steps = 0;
  for (std::size_t i = 0; i < std::size(samples); ++i) {
    world.cluster.node(i).client.train = [&, i, own = samples[i]](std::span<float> model) {
      model[i] += trains ? 1e-3F : 0;  // an element of its own
      steps += trains ? 1 : 0;
      return own;
    };
  }
  world.cluster.run_until(10 * us_per_s);
  REQUIRE(world.cluster.distance() < 1e-4);
  const std::vector<double> begun = world.cluster.whole(0);
  trains = true;
  world.cluster.run_until(30 * us_per_s);
  trains = false;
  world.cluster.run_until(40 * us_per_s);
  REQUIRE(world.cluster.distance() < 1e-4);
  const std::vector<double> end = world.cluster.whole(0);
  const double trained = 1e-3 * static_cast<double>(steps) / std::size(samples);
  for (std::size_t i = 0; i < std::size(samples); ++i) {
    CAPTURE(i);
    const double share = weighs ? static_cast<double>(samples[i]) / (3 + 10 + 40 + 100) : 0.25;
    CHECK((end[i] - begun[i]) / trained == Approx(share).epsilon(0.1).margin(0.004));
  }
}

TEST_CASE("A replica that has trained nothing yet moves others hardly, and comes to them") {
  World world(2, 33, {.codec = Codec::f32, .period_us = 5'000, .weigh_samples = true});
  world.cluster.node(0).replica->set_step({.samples = 1});
  world.cluster.node(1).client.train = [](std::span<float>) { return std::uint64_t{0}; };
  const std::vector<double> before = world.cluster.whole(0);
  world.cluster.run_until(us_per_s);
  CHECK(world.cluster.distance() < 1e-4);
  CHECK(largest_change(before, world.cluster.whole(0)) < 2e-3);
}

namespace {

/// How long it takes until every fragment has been exchanged, at most `limit_us`.
TimeUs time_of_a_round(World& world, TimeUs limit_us) {
  std::set<std::uint32_t> exchanged;
  world.cluster.on_event = [&](const Cluster::Event& event) {
    if (event.kind == Cluster::Event::Kind::concluded) exchanged.insert(event.fragment);
  };
  const TimeUs begin_us = world.cluster.now_us();
  while (exchanged.size() < world.cluster.fragments() && world.cluster.now_us() - begin_us < limit_us)
    world.cluster.run_until(world.cluster.now_us() + 1'000);
  world.cluster.on_event = {};
  return world.cluster.now_us() - begin_us;
}

}  // namespace

TEST_CASE("A shorter period counts at once") {
  gossip::ReplicaOptions options{.period_us = 60 * us_per_s};
  World world(2, 11, options);
  world.cluster.run_until(5 * us_per_s);
  REQUIRE(world.cluster.count(&ReplicaCounters::initiated) > 0);
  options.period_us = 50'000;
  for (std::size_t i = 0; i < 2; ++i)
    world.cluster.node(i).replica->set_options(options);
  CHECK(time_of_a_round(world, 10 * us_per_s) <= 100'000);
}

TEST_CASE("A period that the cadence shortens counts at once") {
  World world(2, 12, {.period_us = 50'000});
  const auto set_capacity = [&](double bytes_per_s) {
    for (std::size_t i = 0; i < 2; ++i)
      world.cluster.node(i).replica->set_capacity(bytes_per_s);
  };
  set_capacity(100);
  world.cluster.run_until(20 * us_per_s);
  REQUIRE(world.cluster.node(0).replica->pace().period_us() > 60 * us_per_s);
  set_capacity(1e9);
  // The cadence is looked at within a second, and then a period passes.
  CHECK(time_of_a_round(world, 10 * us_per_s) <= 1'100'000);
}

TEST_CASE("The cadence keeps gossip to its share of the network", "[figures]") {
  World world(4, 8, {.period_us = 1'000});
  constexpr double capacity = 400'000;
  for (std::size_t i = 0; i < 4; ++i)
    world.cluster.node(i).replica->set_capacity(capacity);
  world.cluster.run_until(15 * us_per_s);
  const auto before = world.cluster.count(&ReplicaCounters::payload_bytes_sent);
  world.cluster.run_until(30 * us_per_s);
  const double rate = static_cast<double>(world.cluster.count(&ReplicaCounters::payload_bytes_sent) - before) / 15 / 4;
  CHECK(rate < 1.05 * 0.5 * capacity);
  CHECK(rate > 0.7 * 0.5 * capacity);
}

TEST_CASE("The cadence keeps gossip to its share of the training's time") {
  Schedule schedule;
  Network network(schedule, gossip::Random(9), 4, {});
  // Serving one of the four fragments takes 0.8 ms of a step of 20 ms.
  Cluster cluster({.elements = 2048, .replica = {.period_us = 1'000}, .step_us = 20'000, .serve_bytes_per_s = 1e7},
                  schedule, network);
  for (std::size_t i = 0; i < 4; ++i) {
    cluster.add_node(std::vector<float>(2048, static_cast<float>(i)), [i](std::span<float> model) {
      for (float& value : model)
        value += 0.001F * static_cast<float>(i);  // something to agree on
      return 1;
    });
    cluster.start_daemon(i, false);
  }
  cluster.link_all();
  cluster.run_until(30 * us_per_s);
  std::vector<TimeUs> before;
  std::vector<std::uint64_t> begun_before;
  for (std::size_t i = 0; i < 4; ++i)
    begun_before.push_back(cluster.node(i).replica->counters().initiated);
  for (std::size_t i = 0; i < 4; ++i)
    before.push_back(cluster.node(i).client.served_us);
  cluster.run_until(90 * us_per_s);
  for (std::size_t i = 0; i < 4; ++i) {
    const double share = static_cast<double>(cluster.node(i).client.served_us - before[i]) / (60.0 * us_per_s);
    CAPTURE(i, share, cluster.node(i).replica->pace().period_us());
    CHECK(share < 0.022);
    CHECK(share > 0.012);
  }
  // No node leaves it to the others to begin exchanges.
  std::vector<std::uint64_t> begun;
  for (std::size_t i = 0; i < 4; ++i)
    begun.push_back(cluster.node(i).replica->counters().initiated - begun_before[i]);
  const auto [least, most] = std::minmax_element(begun.begin(), begun.end());
  CHECK(*least > 100);
  CHECK(*most < 2 * *least);
}

TEST_CASE("The first round of a large model keeps to its share of the training's time") {
  Schedule schedule;
  Network network(schedule, gossip::Random(10), 2, {});
  constexpr std::size_t fragments = 400;
  constexpr std::size_t elements = fragments * 256;
  // Serving a fragment takes 2 ms: ten a second are allowed, an exchange needs two or three, and a round takes minutes.
  Cluster cluster({.elements = elements,
                   .fragment_elements = 256,
                   .replica = {.period_us = 50'000},
                   .step_us = 20'000,
                   .serve_bytes_per_s = 256 * 4 * 2'000,
                   .lean_window = 8},
                  schedule, network);
  for (std::size_t i = 0; i < 2; ++i) {
    cluster.add_node(std::vector<float>(elements, 1 + 0.01F * static_cast<float>(i)),
                     [](std::span<float>) { return 1; });
    cluster.start_daemon(i, false);
  }
  cluster.link_all();
  cluster.run_until(20 * us_per_s);
  std::vector<TimeUs> before;
  for (std::size_t i = 0; i < 2; ++i)
    before.push_back(cluster.node(i).client.served_us);
  cluster.run_until(60 * us_per_s);
  for (std::size_t i = 0; i < 2; ++i) {
    const double share = static_cast<double>(cluster.node(i).client.served_us - before[i]) / (40.0 * us_per_s);
    CAPTURE(i, share, cluster.node(i).replica->pace().period_us());
    CHECK(share < 0.025);
    CHECK(cluster.node(i).replica->counters().initiated > 40);
  }
}

}  // namespace gossamer::sim
