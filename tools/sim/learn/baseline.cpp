#include "tools/sim/learn/baseline.hpp"

#include <algorithm>

#include "gossip/check.hpp"
#include "tools/sim/commands.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {

Population::Population(const Workload& workload, const Experiment& described)
    : experiment(described),
      trainers(make_trainers(workload, described)),
      models(described.nodes, workload.initial(described.seed)),
      graph(make_graph(described.topology, described.nodes)),
      weights(metropolis_weights(graph)),
      time_s(described.nodes),
      bytes(described.nodes),
      clocks(described.nodes),
      random(described.seed + 3) {}

void Population::pass_step(std::size_t i, std::uint64_t used) {
  samples += used;
  clocks[i] += used;
  const double stretch = uniform(random, 1 - experiment.step_jitter, 1 + experiment.step_jitter);
  const double step_s = static_cast<double>(experiment.step_us) / us_per_s / experiment.speed(i);
  time_s[i] += step_s * stretch;
  computed_s += step_s;
}

void Population::train(std::size_t i) {
  const bool ascends = experiment.attack == AttackKind::ascent && i + 1 == size();
  pass_step(i, trainers[i].step(models[i], ascends ? -rate() : rate()));
}

void Population::train_all() {
  for (std::size_t i = 0; i < size(); ++i)
    train(i);
}

void Population::train_from(const std::vector<std::vector<float>>& mixed) {
  for (std::size_t i = 0; i < size(); ++i) {
    const std::vector<float> before = models[i];
    train(i);
    for (std::size_t e = 0; e < before.size(); ++e)
      models[i][e] = mixed[i][e] + (models[i][e] - before[e]);
  }
}

double Population::message_s(double message_bytes) const {
  double rate = experiment.node_bytes_per_s;
  if (experiment.path.bytes_per_s > 0)
    rate = rate > 0 ? std::min(rate, experiment.path.bytes_per_s) : experiment.path.bytes_per_s;
  const double latency_us =
      static_cast<double>(experiment.path.latency_us) + 0.5 * static_cast<double>(experiment.path.jitter_us);
  return latency_us / us_per_s + (rate > 0 ? message_bytes / rate : 0);
}

void Population::wait_for_all(double seconds) {
  const double last = *std::max_element(time_s.begin(), time_s.end());
  std::fill(time_s.begin(), time_s.end(), last + seconds);
}

void Population::wait_for_neighbours(double seconds) {
  const std::vector<double> before = time_s;
  for (std::size_t i = 0; i < size(); ++i) {
    for (const std::size_t j : graph[i])
      time_s[i] = std::max(time_s[i], before[j]);
    time_s[i] += seconds;
  }
}

void Population::exchange_with_neighbours(double bytes_each) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    bytes[i] += bytes_each * static_cast<double>(graph[i].size());
    most = std::max(most, graph[i].size());
  }
  if (most > 0) wait_for_neighbours(message_s(bytes_each * static_cast<double>(most)));
}

void Population::mix(std::vector<std::vector<float>>& values) const {
  std::vector<std::vector<float>> mixed(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    mixed[i].resize(values[i].size());
    const auto own = static_cast<float>(weights[i].back());
    for (std::size_t e = 0; e < values[i].size(); ++e)
      mixed[i][e] = own * values[i][e];
    for (std::size_t k = 0; k < graph[i].size(); ++k) {
      const auto weight = static_cast<float>(weights[i][k]);
      const float* from = values[graph[i][k]].data();
      for (std::size_t e = 0; e < values[i].size(); ++e)
        mixed[i][e] += weight * from[e];
    }
  }
  values = std::move(mixed);
}

namespace {

using Make = Baseline (*)(const Population& nodes);
constexpr Named<Make> methods[] = {{"gossip", nullptr},  // run_gossip() runs this one
                                   {"allreduce", make_all_reduce},
                                   {"local", make_local},
                                   {"dpsgd", make_dpsgd},
                                   {"scclip", make_scclip},
                                   {"choco", make_choco},
                                   {"diloco", make_diloco},
                                   {"async-local", make_async_local},
                                   {"server", make_server},
                                   {"tracking", make_gradient_tracking},
                                   {"pushsum", make_push_sum}};

}  // namespace

LearningRun run_baseline(std::string_view method, const Workload& workload, const Experiment& experiment) {
  Population nodes(workload, experiment);
  const Make make = value_named("method", method, methods);
  GOSSAMER_CHECK(make != nullptr);
  const Baseline round = make(nodes);
  const bool attacked = experiment.attack != AttackKind::none;
  if (experiment.attack == AttackKind::silent || experiment.attack == AttackKind::wild ||
      experiment.attack == AttackKind::nan)
    throw UsageError("'" + std::string(method) +
                     "' knows the attacks extremes, flipped, ascent, old, pull and dissensus");
  if (attacked && experiment.attackers != 1) throw UsageError("'" + std::string(method) + "' knows one attacker");
  Attacker attacker(experiment.attack, experiment.wild_value, nodes.models.front(), experiment.seed + 4);
  LearningRun run{.method = std::string(method)};
  std::vector<std::span<const float>> models;
  const auto look = [&] { models.assign(nodes.models.begin(), nodes.models.end() - (attacked ? 1 : 0)); };
  const auto record = [&] {
    look();
    Record& now = run.records.emplace_back(evaluate(workload, models));
    now.time_s = *std::max_element(nodes.time_s.begin(), nodes.time_s.end());
    now.samples = nodes.samples;
    for (const double sent : nodes.bytes)
      now.bytes += sent / static_cast<double>(nodes.size());
    now.clocks = nodes.clocks;
  };
  const std::uint64_t between = std::max<std::uint64_t>(1, experiment.samples / experiment.evaluations);
  record();
  while (nodes.samples < experiment.samples) {
    const std::uint64_t before = nodes.samples;
    round(nodes);
    if (attacked) {
      look();
      attacker.corrupt(nodes.models.back(), models);
    }
    if (nodes.samples / between != before / between || nodes.samples >= experiment.samples) record();
  }
  look();
  run.computing = nodes.computed_s / (run.records.back().time_s * static_cast<double>(nodes.size()));
  evaluate_nodes(workload, models, run);
  return run;
}

}  // namespace gossamer::sim
