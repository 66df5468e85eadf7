// Learning on simulated nodes: what averaging must not change, and what it must bring.

#include <cmath>
#include <functional>

#include "catch.hpp"
#include "tools/sim/commands.hpp"
#include "tools/sim/learn/baseline.hpp"
#include "tools/sim/learn/gossip_run.hpp"
#include "tools/sim/learn/learn_report.hpp"
#include "usage_error.hpp"

namespace gossamer::sim {
namespace {

constexpr double curvature = 1;
constexpr double sigma = 1;

/// The mean square of the elements of the nodes' mean model.
double stationary_variance(const LearningRun& run) {
  return stationary_loss(run) * 2 / curvature;
}

double predicted_variance(const Experiment& experiment) {
  const double rate = experiment.learning_rate;
  return rate * sigma * sigma / (static_cast<double>(experiment.nodes) * curvature * (2 - rate * curvature));
}

Experiment on_quadratics(std::size_t nodes) {
  Experiment experiment{.nodes = nodes, .samples = 600 * nodes, .learning_rate = 0.05, .seed = 11};
  experiment.trainer.momentum = 0;
  experiment.replica.period_us = experiment.step_us;
  experiment.evaluations = 300;
  return experiment;
}

Experiment on_digits(std::size_t nodes) {
  Experiment experiment{.nodes = nodes, .samples = 400 * 16 * nodes, .learning_rate = 0.02, .seed = 4};
  experiment.replica.period_us = 2 * experiment.step_us;
  experiment.evaluations = 20;
  return experiment;
}

/// 1 − |λ2| of the graph's Metropolis weights, by power iteration.
double spectral_gap(const Graph& graph) {
  constexpr int iterations = 2'000;
  const std::size_t n = graph.size();
  if (n < 2) return 1;
  const auto weights = metropolis_weights(graph);
  std::vector<double> x(n);
  gossip::Random random(1);
  for (double& value : x)
    value = random.uniform() - 0.5;
  double factor = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::vector<double> next(n);
    double mean = 0;
    for (std::size_t i = 0; i < n; ++i) {
      next[i] = weights[i].back() * x[i];
      for (std::size_t k = 0; k < graph[i].size(); ++k)
        next[i] += weights[i][k] * x[graph[i][k]];
      mean += next[i] / static_cast<double>(n);
    }
    double square = 0;
    for (double& value : next) {
      value -= mean;
      square += value * value;
    }
    factor = std::sqrt(square);
    if (!(factor > 1e-12)) return 1;
    for (std::size_t i = 0; i < n; ++i)
      x[i] = next[i] / factor;
  }
  return 1 - factor;
}

}  // namespace

TEST_CASE("The mean of n nodes has an n-th of one node's noise, whatever carries it", "[figures]") {
  const auto quadratic = make_quadratic({.elements = 1'024, .curvature = curvature, .sigma = sigma});
  {
    const Experiment alone = on_quadratics(1);
    CHECK(stationary_variance(run_baseline("local", *quadratic, alone)) ==
          Approx(predicted_variance(alone)).epsilon(0.05));
  }
  struct Way {
    std::size_t nodes;
    const char* topology;
    Codec codec;
  };
  for (const Way& way : {Way{4, "complete", Codec::q4}, Way{4, "ring", Codec::f32}, Way{16, "ring", Codec::q8}}) {
    INFO(way.nodes << " nodes, " << way.topology << ", " << codec_name(way.codec));
    Experiment experiment = on_quadratics(way.nodes);
    experiment.topology = way.topology;
    experiment.replica.codec = way.codec;
    CHECK(stationary_variance(run_gossip(*quadratic, experiment)) ==
          Approx(predicted_variance(experiment)).epsilon(0.05));
  }
  // Negative control: with a learning rate that is 20 % larger, the variance is not the predicted one.
  Experiment wrong = on_quadratics(4);
  const double expected = predicted_variance(wrong);
  wrong.learning_rate *= 1.2;
  CHECK(stationary_variance(run_gossip(*quadratic, wrong)) != Approx(expected).epsilon(0.05));
}

TEST_CASE("Gossip learns digits as all-reduce does, from sorted shards, too") {
  const auto logistic = make_digits("", 0);
  const Experiment experiment = on_digits(4);
  const LearningRun gossip = run_gossip(*logistic, experiment);
  const LearningRun all_reduce = run_baseline("allreduce", *logistic, experiment);
  CHECK(all_reduce.records.back().accuracy > 0.94);
  CHECK(gossip.records.back().accuracy > 0.94);
  CHECK(gossip.records.back().loss == Approx(all_reduce.records.back().loss).epsilon(0.1));
  CHECK(gossip.records.back().samples == experiment.samples);

  Experiment sorted = experiment;
  sorted.sharding.partition = Partition::sorted;
  CHECK(run_gossip(*logistic, sorted).records.back().accuracy > 0.93);
  // Negative control: without exchange no node knows the others' digits.
  CHECK(run_baseline("local", *logistic, sorted).worst_accuracy < 0.5);
}

TEST_CASE("One seed gives one run, another seed another") {
  const auto quadratic = make_quadratic({});
  Experiment experiment = on_quadratics(4);
  experiment.samples = 400;
  experiment.path = {.latency_us = 3'000, .jitter_us = 2'000, .loss = 0.02};
  const auto csv = [&] {
    const LearningRun runs[] = {run_gossip(*quadratic, experiment), run_baseline("choco", *quadratic, experiment)};
    return learn_csv(runs);
  };
  const std::string first = csv();
  CHECK(first == csv());
  experiment.seed += 1;
  CHECK(first != csv());
}

TEST_CASE("The methods compared with reach the quadratic's optimum, and count what they send") {
  const auto quadratic = make_quadratic({.elements = 256, .sigma = 0.1, .spread = 1});
  for (const char* method : {"allreduce", "dpsgd", "choco", "tracking", "pushsum", "diloco"}) {
    INFO(method);
    Experiment experiment = on_quadratics(8);
    experiment.sharding.partition = Partition::sorted;
    experiment.topology = "ring";
    experiment.period_steps = method == std::string("diloco") ? 10 : 1;
    const LearningRun run = run_baseline(method, *quadratic, experiment);
    CHECK(run.records.back().loss < 0.003);
    CHECK(run.records.back().bytes > 0);
    CHECK(run.records.front().loss > 0.3);
  }
  // Gradient tracking forgets how the nodes differ; D-PSGD does not (its bias grows with the learning rate).
  Experiment experiment = on_quadratics(8);
  experiment.sharding.partition = Partition::sorted;
  experiment.topology = "ring";
  const LearningRun dpsgd = run_baseline("dpsgd", *quadratic, experiment);
  const LearningRun tracking = run_baseline("tracking", *quadratic, experiment);
  CHECK(tracking.records.back().consensus < 0.3 * dpsgd.records.back().consensus);
}

TEST_CASE("Self-centred clipping costs nothing among equals and holds an attacker on the bridge") {
  const auto quadratic = make_quadratic({.elements = 64, .sigma = 0.1});
  Experiment experiment = on_quadratics(11);
  experiment.topology = "bridged";
  const auto loss = [&](const char* method, AttackKind attack) {
    experiment.attack = attack;
    return run_baseline(method, *quadratic, experiment).records.back().loss;
  };
  const double honest = loss("dpsgd", AttackKind::none);
  CHECK(loss("scclip", AttackKind::none) == Approx(honest).epsilon(0.5));
  CHECK(loss("scclip", AttackKind::extremes) < 10 * honest);
  CHECK_FALSE(loss("dpsgd", AttackKind::extremes) < 1e6 * honest);
  CHECK(loss("scclip", AttackKind::ascent) < 10 * honest);
  CHECK(message_of([&] { (void)loss("scclip", AttackKind::nan); }).find("knows the attacks") != std::string::npos);
}

TEST_CASE("One asynchronous worker's outer steps are DiLoCo's") {
  const auto quadratic = make_quadratic({.elements = 64, .sigma = 0.1});
  Experiment experiment = on_quadratics(1);
  experiment.period_steps = 10;
  const double synchronous = run_baseline("diloco", *quadratic, experiment).records.back().loss;
  for (const auto kind : {OuterRule::nesterov, OuterRule::delayed}) {
    experiment.outer_rule = kind;
    CHECK(run_baseline("async-local", *quadratic, experiment).records.back().loss == Approx(synchronous).epsilon(1e-3));
  }
}

TEST_CASE("Outer momentum that suits rounds is too much for arrivals one by one, unless it is delayed or gentle") {
  const auto quadratic = make_quadratic({.elements = 256, .sigma = 0.1});
  Experiment experiment = on_quadratics(4);
  experiment.samples = 6'000;
  experiment.step_us = us_per_s;
  experiment.speeds = {1 / 0.58, 1 / 0.75, 1 / 1.51, 1 / 3.33};
  experiment.period_steps = 20;
  const auto loss = [&](const char* method, OuterRule kind, double rate) {
    experiment.outer_rule = kind;
    experiment.outer_rate = rate;
    return stationary_loss(run_baseline(method, *quadratic, experiment));
  };
  const double synchronous = loss("diloco", OuterRule::none, 0.7);
  const double bad = loss("async-local", OuterRule::nesterov, 0.7);
  CAPTURE(synchronous, bad);
  CHECK_FALSE(bad < 1e6 * synchronous);
  CHECK(loss("async-local", OuterRule::nesterov, 0.07) < 100 * synchronous);
  CHECK(loss("async-local", OuterRule::delayed, 0.7) < 100 * synchronous);
  CHECK(loss("async-local", OuterRule::none, 0.7) < 100 * synchronous);
  // The fast have taken more steps than the slow.
  const LearningRun run = run_baseline("async-local", *quadratic, experiment);
  const auto& clocks = run.records.back().clocks;
  CHECK(clocks[0] > 4 * clocks[3]);
}

TEST_CASE("All-reduce takes the time of its slowest node and of its messages") {
  const auto quadratic = make_quadratic({.elements = 1'000});
  Experiment experiment{.nodes = 4, .samples = 40, .learning_rate = 0.1};
  experiment.step_jitter = 0;
  experiment.step_us = 10'000;
  experiment.speeds = {0.25};
  experiment.path.latency_us = 1'000;
  experiment.node_bytes_per_s = 1e6;
  const LearningRun run = run_baseline("allreduce", *quadratic, experiment);
  // Ten rounds of 40 ms and 6 messages of 1 kB (1 ms) with 1 ms latency each.
  CHECK(run.records.back().time_s == Approx(10 * (0.040 + 6 * 0.002)));
  CHECK(run.records.back().bytes == Approx(10 * 6 * 1'000));
}

TEST_CASE("What cannot be run is refused with a reason") {
  CHECK(message_of([] { (void)make_graph("ring", 0); }).find("at least one") != std::string::npos);
  CHECK(message_of([] { (void)make_graph("hypercube", 6); }).find("power of two") != std::string::npos);
  CHECK(message_of([] { (void)make_graph("torus", 7); }).find("product") != std::string::npos);
  CHECK(message_of([] { (void)make_graph("regular-9", 8); }).find("no graph") != std::string::npos);
  CHECK(message_of([] { (void)make_graph("moebius", 8); }).find("unknown topology") != std::string::npos);
  const auto quadratic = make_quadratic({});
  CHECK(message_of([&] { (void)run_gossip(*quadratic, on_quadratics(1)); }).find("2 nodes") != std::string::npos);
  CHECK(message_of([&] { (void)run_baseline("magic", *quadratic, on_quadratics(2)); }).find("unknown method") !=
        std::string::npos);
}

TEST_CASE("Metropolis weights are symmetric and doubly stochastic, with the gap that theory gives for a ring") {
  for (const char* topology : {"complete", "ring", "chain", "torus", "star", "dumbbell", "regular-3"}) {
    INFO(topology);
    const Graph graph = make_graph(topology, 12);
    const auto weights = metropolis_weights(graph);
    for (std::size_t i = 0; i < graph.size(); ++i) {
      double sum = 0;
      for (const double weight : weights[i]) {
        CHECK(weight >= 0);
        sum += weight;
      }
      CHECK(sum == Approx(1));
      for (std::size_t k = 0; k < graph[i].size(); ++k) {
        const auto& back = graph[graph[i][k]];
        const auto at = std::find(back.begin(), back.end(), i) - back.begin();
        CHECK(weights[i][k] == weights[graph[i][k]][static_cast<std::size_t>(at)]);
      }
    }
    CHECK(spectral_gap(graph) > 0);
  }
  CHECK(spectral_gap(make_graph("ring", 12)) == Approx(2.0 / 3 * (1 - std::cos(2 * std::numbers::pi / 12))));
  CHECK(spectral_gap(make_graph("complete", 12)) == Approx(1));
}

}  // namespace gossamer::sim
