// Faults drawn from fixed seeds break no invariant. The test sim_sabotage checks that each oracle notices when its rule
// is broken (tools/sim/hunt/sabotage.hpp).

#include <cstdint>

#include "catch.hpp"
#include "tools/sim/hunt/scenario.hpp"

namespace gossamer::sim {
namespace {

/// A calm cluster: nothing goes on but what a test adds.
Swarm quiet(std::uint64_t seed, Codec codec = Codec::q8) {
  Swarm swarm;
  swarm.seed = seed;
  swarm.nodes = 3;
  swarm.faults_us = us_per_s;
  swarm.cluster.elements = 700;
  swarm.cluster.seed = seed;
  swarm.cluster.replica.codec = codec;
  swarm.cluster.replica.period_us = 10'000;
  swarm.cluster.replica.lifetime_us = 2 * us_per_s;
  swarm.cluster.replica.info_period_us = 200'000;
  return swarm;
}

/// Runs the scenario, and checks that it breaks no invariant.
HuntOutcome check_unbroken(const Swarm& swarm) {
  HuntOutcome outcome = run_scenario(swarm);
  INFO("seed " << swarm.seed << "\n" << describe(swarm) << "\n" << outcome.explanation);
  CHECK(outcome.violation == "");
  return outcome;
}

}  // namespace

TEST_CASE("Faults of a fixed set of seeds break no invariant") {
  // After the first few come seeds that once broke an invariant. In one, a link came up again, and an answer that
  // waited for its fragment was asked for anew. In the other, a leaver in lean memory had two exchanges under way where
  // one is allowed.
  const auto seed = GENERATE(range<std::uint64_t>(1, 9), 100'047, 62'681'368'690'991);
  Swarm swarm = draw_swarm(static_cast<std::uint64_t>(seed));
  swarm.faults_us = std::min<TimeUs>(swarm.faults_us, 2 * us_per_s);
  swarm.nodes = std::min<std::size_t>(swarm.nodes, 5);
  const HuntOutcome outcome = check_unbroken(swarm);
  INFO("seed " << seed);
  CHECK(outcome.exchanges > 100);
  CHECK(outcome.faults > 0);
}

TEST_CASE("In lean memory every fragment has its turn, however many requests there are for the others") {
  // Of three fragments two had memory, and were asked for so often that they never gave it back.
  Swarm swarm = draw_swarm(164'586'730'618'960);
  swarm.cluster.lean_window = 2;
  check_unbroken(swarm);
}

TEST_CASE("Twelve programs end with one model, though the last one has trained on by itself") {
  // Its steps were once so long that its replica was taken for one that has gone wild, and no end came.
  check_unbroken(draw_swarm(251'733'926'674'558));
}

TEST_CASE("Who only follows comes to the settings of those it follows, though these have begun the job anew") {
  const auto seed = GENERATE(std::uint64_t{94'898'958'893'399}, 235'883'169'120'273);
  check_unbroken(draw_swarm(seed));
}

TEST_CASE("A fragment's owner takes no turns from another node of its sponsor that does not see the owner") {
  check_unbroken(draw_swarm(208'722'232'148'020));
}

TEST_CASE("While a run ends, one that lies about its clock makes those of others no larger than is promised") {
  // With the first two seeds, a node that starts again is linked with the liar before all others. With the last one,
  // the others have ended and count as training on, while the liar trains on until it is the furthest.
  const auto [seed, first] = GENERATE(table<std::uint64_t, bool>({{2, true}, {9, true}, {14, false}}));
  Swarm swarm = quiet(seed);
  swarm.nodes = 4;
  swarm.speeds = 4;
  swarm.liars = 1;
  swarm.liars_first = first;
  swarm.finishes = true;
  check_unbroken(swarm);
}

TEST_CASE("A client that comes to the node of one that died answers nothing of what that one has answered") {
  // The new replica once took a repeated request for a fresh one, and the node that had asked never counted what was
  // lost.
  const auto seed = GENERATE(range<std::uint64_t>(0, 4));
  Swarm swarm = quiet(40 + seed);
  swarm.path = {.latency_us = 1'000, .loss = 0.1};
  swarm.deeds = {Deed::client_crash};
  swarm.between_us = 50'000;
  swarm.lasting_us = 10'000;
  swarm.faults_us = 3 * us_per_s;
  check_unbroken(swarm);
}

namespace {

/// A calm cluster in which the membership decides about links and deaths.
Swarm with_membership(std::uint64_t seed) {
  Swarm swarm = quiet(seed);
  swarm.nodes = 4;
  swarm.membership = true;
  swarm.probe_interval_us = 50'000;
  swarm.liveness_us = 20 * us_per_s;
  return swarm;
}

}  // namespace

TEST_CASE("Membership tells a cluster of its dead, and brings it together again", "[figures]") {
  const auto [limit, seed] = GENERATE(table<std::size_t, std::uint64_t>({{64, 24}, {64, 25}, {2, 26}, {2, 27}}));
  Swarm swarm = with_membership(seed);
  swarm.nodes = 5;
  swarm.full_view_limit = limit;
  swarm.one_stays_dead = true;
  swarm.faults_us = 3 * us_per_s;
  swarm.between_us = 100'000;
  swarm.lasting_us = 500'000;
  swarm.path = {.latency_us = 1'000, .jitter_us = 1'000, .loss = 0.02, .duplicate = 0.05, .reorder = 0.05};
  swarm.deeds = {Deed::partition, Deed::isolation, Deed::daemon_crash, Deed::pause, Deed::leave, Deed::arrival};
  const HuntOutcome outcome = check_unbroken(swarm);
  INFO("seed " << seed);
  CHECK(outcome.exchanges > 100);
}

TEST_CASE("One seed gives one trace, wherever memory lies") {
  Swarm swarm = draw_swarm(4);
  swarm.faults_us = us_per_s;
  swarm.nodes = 3;
  const std::uint64_t hash = run_scenario(swarm).hash;
  std::vector<std::unique_ptr<char[]>> unrelated;
  for (std::size_t size = 1; size < 40'000; size = size * 5 / 4 + 1)
    unrelated.push_back(std::make_unique<char[]>(size));
  CHECK(run_scenario(swarm).hash == hash);
  swarm.cluster.seed += 1;
  CHECK(run_scenario(swarm).hash != hash);
}

TEST_CASE("Nothing is found in a run in which nothing is broken") {
  for (const Codec codec : {Codec::q8, Codec::q4, Codec::f32}) {
    const HuntOutcome outcome = run_scenario(quiet(11, codec));
    CHECK(outcome.violation == "");
    CHECK(outcome.halves == 0);
  }
}

}  // namespace gossamer::sim
