// One member of eight means harm: what that does to the others' learning, with clipping and without.

#include "tools/sim/learn/attack.hpp"

#include <cmath>

#include "catch.hpp"
#include "tools/sim/learn/gossip_run.hpp"

namespace gossamer::sim {
namespace {

/// ‖x − b‖² with b = 0 for everyone, from x = initial: the loss falls to the noise. Steps are so large that averaging
/// does not outweigh a node that goes uphill.
Experiment experiment_with(AttackKind attack, std::size_t nodes = 8) {
  Experiment experiment{.nodes = nodes, .samples = nodes * 250, .learning_rate = 0.2, .seed = 5};
  experiment.attack = attack;
  experiment.replica = {.period_us = experiment.step_us};
  experiment.fragments = 1;
  experiment.evaluations = 1;
  return experiment;
}

LearningRun run(const Experiment& experiment) {
  return run_gossip(*make_quadratic({.elements = 512, .sigma = 0.1}), experiment);
}

LearningRun run_with(AttackKind attack, float clip, Codec codec = Codec::q8) {
  Experiment experiment = experiment_with(attack);
  experiment.replica.codec = codec;
  experiment.replica.clip = clip;
  return run(experiment);
}

}  // namespace

TEST_CASE("An attacker is held back by clipping, and by nothing else") {
  const double honest = run_with(AttackKind::silent, 0).records.back().loss;
  REQUIRE(std::isfinite(honest));
  const AttackKind kind = GENERATE(AttackKind::extremes, AttackKind::ascent);
  const double clipped = run_with(kind, 2).records.back().loss;
  const double open = run_with(kind, 0).records.back().loss;
  CAPTURE(honest, clipped, open);
  CHECK(clipped < 10 * honest);
  CHECK_FALSE(open < 1000 * honest);
}

TEST_CASE("By default a member that goes wild ruins nobody") {
  const double honest = run_with(AttackKind::silent, 0).records.back().loss;
  const AttackKind kind = GENERATE(AttackKind::extremes, AttackKind::ascent);
  const double with_default = run_with(kind, gossip::ReplicaOptions{}.clip).records.back().loss;
  CAPTURE(honest, with_default);
  CHECK(with_default < 10 * honest);
}

TEST_CASE(
    "One that goes wild in the middle of a run moves nobody, however few the others are and however often they meet") {
  const float value = GENERATE(30.0F, 1e3F, 1e30F);
  const std::size_t nodes = GENERATE(4, 8);
  const TimeUs steps_between = GENERATE(1, 4);
  CAPTURE(value, nodes, steps_between);
  const auto last = [&](AttackKind attack) {
    Experiment experiment{.nodes = nodes, .samples = nodes * 1500, .learning_rate = 0.05, .seed = 5};
    experiment.attack = attack;
    experiment.wild_value = value;
    experiment.replica = {.period_us = steps_between * experiment.step_us};
    experiment.fragments = 1;
    experiment.evaluations = 1;
    return run_gossip(*make_quadratic({.elements = 512, .sigma = 0.3, .spread = 1}), experiment);
  };
  const LearningRun honest = last(AttackKind::silent);
  const LearningRun attacked = last(AttackKind::wild);
  CHECK(attacked.records.back().loss < 3 * honest.records.back().loss);
  CHECK(attacked.worst_loss < 10 * honest.worst_loss);
}

TEST_CASE("Twelve that one sponsor has admitted do no more than one") {
  Experiment experiment = experiment_with(AttackKind::ascent, 20);
  experiment.certified = true;
  experiment.attackers = 12;
  const double each = run(experiment).records.back().loss;
  experiment.one_sponsor = true;
  const double as_one = run(experiment).records.back().loss;
  const double honest = run_with(AttackKind::silent, 0).records.back().loss;
  CAPTURE(honest, each, as_one);
  CHECK(as_one < 10 * honest);
  CHECK(each > 10 * as_one);
}

TEST_CASE("NaN and infinity do not spread from one member, whatever the codec") {
  const Codec codec = GENERATE(Codec::f32, Codec::q8, Codec::q4);
  const float clip = GENERATE(0.0F, 2.0F);
  const double honest = run_with(AttackKind::silent, 0, codec).records.back().loss;
  const LearningRun attacked = run_with(AttackKind::nan, clip, codec);
  CHECK(attacked.records.back().loss == Approx(honest).epsilon(0.3));
  CHECK(std::isfinite(attacked.worst_loss));
}

TEST_CASE("Clipping costs honest nodes nothing where all are alike") {
  const double off = run_with(AttackKind::none, 0).records.back().loss;
  const double on = run_with(AttackKind::none, 2).records.back().loss;
  CHECK(on == Approx(off).epsilon(0.1));
}

TEST_CASE("Attacks have names") {
  CHECK(value_named("attack", "old", attacks) == AttackKind::old);
  CHECK(value_named("attack", "none", attacks) == AttackKind::none);
  CHECK_THROWS_AS(value_named("attack", "harm", attacks), UsageError);
}

}  // namespace gossamer::sim
