#include "tools/sim/membership/membership.hpp"

#include <limits>
#include <set>

#include "catch.hpp"

#include "tools/sim/commands.hpp"
#include "tools/sim/membership/membership_measure.hpp"

namespace gossamer::sim {
namespace {

using Change = gossip::Membership::Change;

/// A cluster whose nodes have found each other, and what its nodes say.
struct LearningRun {
  explicit LearningRun(std::size_t nodes, gossip::MembershipOptions options = {}, std::uint64_t seed = 1)
      : network(schedule, gossip::Random(seed), nodes, {.latency_us = 250, .jitter_us = 500}),
        cluster(schedule, network, options, seed + 1) {
    cluster.on_event = [this](std::size_t node, const gossip::Membership::Event& event) {
      const std::size_t subject = MembershipCluster::number(event.node);
      events.push_back({schedule.now_us(), node, subject, event.change});
      if (event.change == Change::died && cluster.running(subject)) live_declared_dead.insert(subject);
    };
  }
  void start(double settle_s = 30) {
    cluster.start_all(20);
    run_for(static_cast<double>(cluster.nodes()) / 20 + settle_s);
  }
  /// The nodes from `hosts` on can only dial out. All join through the first.
  void start_behind_nat_from(std::size_t hosts) {
    for (std::size_t node = 0; node < cluster.nodes(); ++node) {
      network.set_behind_nat(node, node >= hosts);
      cluster.start(node, {0});
      run_for(0.1);
    }
  }
  void run_for(double seconds) { schedule.run_until(schedule.now_us() + static_cast<TimeUs>(seconds * us_per_s)); }
  void set_loss(double loss) { network.set_default({.latency_us = 250, .jitter_us = 500, .loss = loss}); }
  /// Nodes that have been told this of `subject` since `since_us`.
  [[nodiscard]] std::set<std::size_t> told(Change change, std::size_t subject, TimeUs since_us = 0) const {
    std::set<std::size_t> nodes;
    for (const Told& item : events) {
      if (item.change == change && item.subject == subject && item.at_us >= since_us) nodes.insert(item.node);
    }
    return nodes;
  }
  void halve() {
    std::vector<int> group(cluster.nodes());
    for (std::size_t i = 0; i < group.size(); ++i)
      group[i] = static_cast<int>(i % 2);
    network.partition(group);
  }

  struct Told {
    TimeUs at_us;
    std::size_t node;
    std::size_t subject;
    Change change;

    friend bool operator==(const Told&, const Told&) = default;
  };
  Schedule schedule;
  Network network;
  MembershipCluster cluster;
  std::vector<Told> events;
  std::set<std::size_t> live_declared_dead;
};

/// Refutation switched off: nobody hears that a node's incarnation has grown.
bool without_refutation(std::size_t, std::size_t, MembershipMessage& message) {
  message.incarnation = 1'000'000;
  for (Rumour& rumour : message.rumours) {
    if (rumour.claim == Claim::alive)
      rumour.subject.incarnation = std::min<std::uint64_t>(1'000'000, rumour.subject.incarnation);
  }
  if (auto* sync = std::get_if<Sync>(&message.body)) {
    sync->sender.incarnation = 1'000'000;
    for (SyncEntry& entry : sync->entries)
      entry.record.incarnation = std::min<std::uint64_t>(1'000'000, entry.record.incarnation);
  }
  if (auto* join = std::get_if<Join>(&message.body)) join->sender.incarnation = 1'000'000;
  return true;
}

TEST_CASE("A crash is known to every node, in the same time in small and large clusters") {
  for (const std::size_t nodes : {5, 40, 120}) {
    LearningRun run(nodes);
    run.start();
    CHECK(run.live_declared_dead.empty());
    run.cluster.crash(nodes / 2);
    run.run_for(25);
    INFO(nodes);
    CHECK(run.told(Change::died, nodes / 2).size() == nodes - 1);
    CHECK(run.live_declared_dead.empty());
  }
}

TEST_CASE("A crash is suspected one probe interval later on average, and the length of a probe") {
  // Das et al. 2002, section 3.1: in an interval, at least one of the n - 1 others probes it with probability 1 - 1 /
  // e. Counted in whole intervals, that takes e / (e - 1) of them. Nodes probe out of step, so the mean wait is one
  // interval.
  double sum = 0;
  constexpr int crashes = 60;
  LearningRun run(24);
  run.start();
  for (int i = 0; i < crashes; ++i) {
    const std::size_t node = static_cast<std::size_t>(i) % 24;
    run.run_for(static_cast<double>(i % 10) / 10);
    const TimeUs begin_us = run.schedule.now_us();
    run.cluster.crash(node);
    run.run_for(15);
    TimeUs first_us = run.schedule.now_us();
    for (const LearningRun::Told& item : run.events) {
      if (item.subject == node && item.change == Change::suspected && item.at_us >= begin_us) {
        first_us = std::min(first_us, item.at_us);
      }
    }
    sum += static_cast<double>(first_us - begin_us) / us_per_s;
    run.cluster.start(node, {(node + 1) % 24});
    run.run_for(10);
  }
  CHECK(sum / crashes == Approx(2).margin(0.35));
}

/// Counts the live nodes that are declared dead in an hour in which one message of twenty is lost.
std::size_t deaths_under_loss(bool refutation) {
  LearningRun run(16);
  run.start();
  if (!refutation) run.cluster.tamper = without_refutation;
  run.set_loss(0.05);
  run.run_for(3'600);
  CHECK(
      std::ranges::any_of(run.events, [](const LearningRun::Told& item) { return item.change == Change::suspected; }));
  return run.live_declared_dead.size();
}

TEST_CASE("An hour with 5 % loss makes nobody dead") {
  CHECK(deaths_under_loss(true) == 0);
}

TEST_CASE("Without refutation an hour with 5 % loss does") {
  CHECK(deaths_under_loss(false) > 0);
}

/// Nodes declared dead when one has paused for less than the shortest suspicion, but long enough to be suspected.
std::size_t deaths_by_short_pause(bool refutation) {
  LearningRun run(24);
  run.start();
  if (!refutation) run.cluster.tamper = without_refutation;
  run.cluster.pause(3, 4 * us_per_s + us_per_s / 2);
  run.run_for(60);
  CHECK_FALSE(run.told(Change::suspected, 3).empty());
  return run.live_declared_dead.size();
}

TEST_CASE("A node that pauses for less than a suspicion is not declared dead") {
  CHECK(deaths_by_short_pause(true) == 0);
}

TEST_CASE("Without refutation it is") {
  CHECK(deaths_by_short_pause(false) > 0);
}

TEST_CASE("Nodes that pause for a minute accuse nobody and are members again soon after") {
  for (const std::size_t nodes : {30, 120}) {
    LearningRun run(nodes);
    run.start();
    const std::set<std::size_t> chosen{2, 11, 19};
    for (const std::size_t node : chosen)
      run.cluster.pause(node, 60 * us_per_s);
    run.run_for(60);
    CHECK(run.live_declared_dead == chosen);
    run.run_for(20);
    CHECK(run.live_declared_dead == chosen);
    CHECK(run.cluster.wrongly_gone() == 0);
    if (nodes == 30) CHECK(run.cluster.everybody_knows_everybody());
    CHECK(run.cluster.largest_component() == nodes);
  }
}

TEST_CASE("Halves that were cut off from each other for a minute become one again") {
  for (const std::size_t nodes : {2, 31, 120}) {
    INFO(nodes);
    LearningRun run(nodes);
    run.start();
    run.halve();
    run.run_for(60);
    CHECK(run.cluster.largest_component() == (nodes + 1) / 2);
    run.network.heal();
    run.run_for(60);
    CHECK(run.cluster.largest_component() == nodes);
    CHECK(run.cluster.wrongly_gone() == 0);
    if (nodes <= 64) CHECK(run.cluster.everybody_knows_everybody());
  }
}

TEST_CASE("Without the addresses of the dead, halves do not find together") {
  gossip::MembershipOptions options;
  options.reconnect_interval_us = 24 * 3600 * us_per_s;  // negative control: nobody dials the dead
  LearningRun run(16, options);
  run.start();
  run.halve();
  run.run_for(60);
  run.network.heal();
  run.run_for(60);
  CHECK(run.cluster.largest_component() == 8);
}

TEST_CASE("Active views are symmetric and connected after four of five nodes die at once") {
  constexpr std::size_t nodes = 120;
  for (const std::uint64_t seed : {1, 2}) {
    LearningRun run(nodes, {}, seed);
    run.start();
    REQUIRE(run.cluster.membership(0).partial());
    CHECK(run.cluster.one_sided_links() == 0);
    CHECK(run.cluster.largest_component() == nodes);
    for (std::size_t node = 0; node < nodes; ++node) {
      if (node % 5 != 0) run.cluster.crash(node);
    }
    run.run_for(120);
    INFO(seed);
    CHECK(run.cluster.one_sided_links() == 0);
    CHECK(run.cluster.largest_component() == nodes / 5);
    CHECK(run.live_declared_dead.empty());
  }
}

TEST_CASE("Partial views have a bounded number of neighbours and a good spectral gap") {
  LearningRun run(150);
  run.start();
  for (std::size_t node = 0; node < 150; ++node) {
    const std::size_t neighbours = run.cluster.membership(node).members().size();
    CHECK(neighbours >= 6);
    CHECK(neighbours <= 10);
    CHECK(run.cluster.membership(node).passive_view().size() == 32);
  }
  // A random 8-regular graph's lazy walk: (1 + 2·√7 / 8) / 2 = 0.83 (Friedman 2008).
  CHECK(run.cluster.walk_eigenvalue(200) < 0.86);
}

TEST_CASE("A large cluster that shrinks has full views again") {
  LearningRun run(80);
  run.start();
  REQUIRE(run.cluster.membership(0).partial());
  for (std::size_t node = 12; node < 80; ++node)
    run.cluster.crash(node);
  run.run_for(500);
  CHECK_FALSE(run.cluster.membership(0).partial());
  CHECK(run.cluster.everybody_knows_everybody());
}

TEST_CASE("Nodes that can only dial out are members, and never paired with each other") {
  for (const std::size_t nodes : {20, 100}) {
    INFO(nodes);
    LearningRun run(nodes);
    for (std::size_t node = 1; node < nodes; ++node)
      run.network.set_behind_nat(node, node % 5 < 2);
    run.cluster.on_view = [&](std::size_t, const gossip::Membership::Actions& actions) {
      for (const gossip::Membership::Dial& dial : actions.dial)
        CHECK_FALSE(run.network.behind_nat(MembershipCluster::number(dial.node)));
    };
    // All nodes join through the first one, which can be dialled.
    for (std::size_t node = 0; node < nodes; ++node) {
      run.cluster.start(node, {0});
      run.run_for(0.1);
    }
    run.run_for(60);
    CHECK(run.cluster.largest_component() == nodes);
    for (std::size_t node = 0; node < nodes; ++node) {
      for (const NodeId& other : run.cluster.membership(node).view()) {
        CHECK_FALSE((run.network.behind_nat(node) && run.network.behind_nat(MembershipCluster::number(other))));
      }
    }
    CHECK(run.live_declared_dead.empty());
    REQUIRE(run.network.behind_nat(5 + 1));
    run.cluster.crash(6);
    run.run_for(25);
    CHECK(run.told(Change::died, 6).size() == nodes - 1);
  }
}

/// The smallest member list among the nodes that only dial out (from `hosts` on), and how many of them know only a
/// part.
struct Guests {
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  std::size_t partial = 0;
};

Guests guests_of(const MembershipCluster& cluster, std::size_t hosts) {
  Guests guests;
  for (std::size_t node = hosts; node < cluster.nodes(); ++node) {
    if (!cluster.running(node)) continue;
    guests.fewest = std::min(guests.fewest, cluster.membership(node).members().size());
    guests.partial += cluster.membership(node).partial() ? 1 : 0;
  }
  return guests;
}

TEST_CASE("Few nodes that can be dialled hold many together that cannot") {
  struct Case {
    std::size_t nodes, hosts;
  };
  for (const auto& [nodes, hosts] : {Case{100, 8}, Case{100, 25}, Case{300, 10}, Case{300, 30}}) {
    INFO(nodes << " nodes, " << hosts << " of them can be dialled");
    const bool scarce = 2 * (nodes - hosts) > 38 * hosts;  // see has_guest_room()
    LearningRun run(nodes);
    std::size_t dialled = 0;
    run.cluster.on_view = [&](std::size_t, const gossip::Membership::Actions& actions) {
      dialled += actions.dial.size();
    };
    run.start_behind_nat_from(hosts);
    run.run_for(300);
    dialled = 0;
    for (int minute = 0; minute < 10; ++minute) {
      run.run_for(60);
      INFO("after minute " << minute);
      const Guests guests = guests_of(run.cluster, hosts);
      CHECK(run.cluster.largest_component() == nodes);
      CHECK(run.cluster.one_sided_links() == 0);
      CHECK(guests.partial == nodes - hosts);
      CHECK(guests.fewest >= (scarce ? 1 : 2));
    }
    UNSCOPED_INFO(dialled << " dialled");
    CHECK(dialled < 10 * (nodes - hosts));
    CHECK(run.live_declared_dead.empty());
    if (scarce) continue;
    for (std::size_t node = 2; node < hosts; node += 2)
      run.cluster.crash(node);
    run.run_for(60);
    CHECK(run.cluster.largest_component() == nodes - (hosts - 1) / 2);
    CHECK(guests_of(run.cluster, hosts).fewest >= 1);
  }
}

TEST_CASE("A large cluster of nodes that only dial out, which shrinks, has full views again") {
  constexpr std::size_t hosts = 20;
  LearningRun run(100);
  run.start_behind_nat_from(hosts);
  run.run_for(60);
  REQUIRE(guests_of(run.cluster, hosts).partial == 80);
  for (std::size_t node = 0; node < 100; ++node) {
    if (node % 10 > 1) run.cluster.crash(node);
  }
  run.run_for(700);
  CHECK(guests_of(run.cluster, hosts).partial == 0);
  CHECK(run.cluster.everybody_knows_everybody());
  for (std::size_t node = 0; node < 100; ++node) {
    if (node % 10 > 1) run.cluster.start(node, {0});
  }
  run.run_for(120);
  CHECK(guests_of(run.cluster, hosts).partial == 80);
  CHECK(run.cluster.largest_component() == 100);
  CHECK(run.cluster.one_sided_links() == 0);
}

TEST_CASE("A cluster is not taken for small because each node sees few of those that only dial out") {
  constexpr std::size_t hosts = 20;
  gossip::MembershipOptions options;
  options.active_view = 4;
  LearningRun run(70, options);
  run.start_behind_nat_from(hosts);
  for (int minute = 0; minute < 15; ++minute) {
    run.run_for(60);
    for (std::size_t node = 0; node < 70; ++node)
      REQUIRE(run.cluster.membership(node).partial());
  }
}

TEST_CASE("A node that crashed comes back under the same name") {
  for (const std::size_t nodes : {20, 100}) {
    LearningRun run(nodes);
    run.start();
    run.cluster.crash(7);
    run.run_for(30);
    const TimeUs since_us = run.schedule.now_us();
    run.cluster.start(7, {0, 1});
    run.run_for(30);
    INFO(nodes);
    CHECK(run.told(Change::alive_again, 7, since_us).size() == nodes - 1);
    CHECK(run.cluster.wrongly_gone() == 0);
    CHECK(run.cluster.largest_component() == nodes);
  }
}

TEST_CASE("Everybody hears that a node has left, nobody that it died") {
  for (const std::size_t nodes : {20, 100}) {
    LearningRun run(nodes);
    run.start();
    run.set_loss(0.05);
    run.cluster.leave(7);
    run.run_for(40);
    INFO(nodes);
    CHECK(run.told(Change::left, 7).size() == nodes - 1);
    CHECK(run.told(Change::died, 7).empty());
  }
}

TEST_CASE("The same seed gives the same events, another seed others") {
  const auto events = [](std::uint64_t seed) {
    LearningRun run(70, {}, seed);
    run.start();
    run.set_loss(0.05);
    run.cluster.crash(5);
    run.run_for(30);
    return run.events;
  };
  CHECK(events(1) == events(1));
  CHECK(events(1) != events(2));
}

TEST_CASE("What cannot be measured is refused with a reason") {
  MembershipPlan plan;
  plan.nodes = 0;
  CHECK_THROWS_AS(measure_membership(plan), UsageError);
  plan.nodes = 1'000'000;
  CHECK_THROWS_AS(measure_membership(plan), UsageError);
  plan.nodes = 3;
  plan.loss = 1;
  CHECK_THROWS_AS(measure_membership(plan), UsageError);
  plan.loss = 0;
  plan.seconds = 0;
  CHECK_THROWS_AS(measure_membership(plan), UsageError);
  CHECK_THROWS_AS(membership_profile("moon"), UsageError);
}

}  // namespace
}  // namespace gossamer::sim
