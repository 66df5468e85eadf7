#include "tools/sim/learn/gossip_run.hpp"

#include <algorithm>

#include "tools/sim/cluster.hpp"
#include "tools/sim/commands.hpp"

namespace gossamer::sim {

namespace {

std::size_t fragment_elements(std::size_t elements, std::size_t fragments) {
  const std::size_t each = (elements + fragments - 1) / fragments;
  return std::min<std::size_t>((each + block_elements - 1) / block_elements * block_elements, max_fragment_elements);
}

class GossipRun {
 public:
  GossipRun(const Workload& workload, const Experiment& experiment)
      : workload_(workload),
        experiment_(experiment),
        honest_(experiment.nodes - (experiment.attack == AttackKind::none ? 0 : experiment.attackers)),
        trainers_(make_trainers(workload, experiment)),
        attacker_(experiment.attack, experiment.wild_value, workload.initial(experiment.seed), experiment.seed + 3),
        network_(schedule_, gossip::Random(experiment.seed + 1), experiment.nodes + experiment.keepers,
                 experiment.path),
        cluster_({.elements = workload.elements(),
                  .fragment_elements = fragment_elements(workload.elements(), experiment.fragments),
                  .replica = experiment.replica,
                  .step_us = experiment.step_us,
                  .step_jitter = experiment.step_jitter,
                  .tick_us = std::min<TimeUs>(2 * us_per_ms, std::max<TimeUs>(1, experiment.step_us / 4)),
                  .serve_bytes_per_s = experiment.memory_bytes_per_s,
                  .byte_scale = experiment.byte_scale,
                  .certified = experiment.certified,
                  .seed = experiment.seed + 2},
                 schedule_, network_) {
    const std::size_t nodes = experiment.nodes + experiment.keepers;
    const Graph graph = make_graph(experiment.topology, nodes);
    const std::vector<float> initial = workload.initial(experiment.seed);
    for (std::size_t i = 0; i < nodes; ++i) {
      if (experiment.node_bytes_per_s > 0)
        network_.set_node_rate(i, experiment.node_bytes_per_s, experiment.node_bytes_per_s);
      cluster_.add_node(
          initial, [this, i](std::span<float> model) { return train(i, model); }, experiment.speed(i));
      cluster_.node(i).keeps = i >= experiment.nodes;
      if (experiment.one_sponsor && i + experiment.attackers >= experiment.nodes) cluster_.node(i).sponsor = 1;
      cluster_.start_daemon(i, false);
      cluster_.node(i).replica->set_capacity(experiment.node_bytes_per_s);
    }
    cluster_.tamper = [this](std::size_t from, std::size_t, Message& message) {
      return from < honest_ || attacker_.tamper(message);
    };
    for (std::size_t i = 0; i < graph.size(); ++i) {
      for (const std::size_t j : graph[i]) {
        if (i < j) cluster_.link(i, j);
      }
    }
  }

  LearningRun run() {
    LearningRun result{.method = "gossip"};
    const std::uint64_t between = std::max<std::uint64_t>(1, experiment_.samples / experiment_.evaluations);
    std::uint64_t next = 0;
    result.records.push_back(measure());
    while (samples_ < experiment_.samples) {
      next = std::min(next + between, experiment_.samples);
      while (samples_ < next)
        cluster_.run_until(schedule_.now_us() + experiment_.step_us / 4 + 1);
      result.records.push_back(measure());
    }
    evaluate_nodes(workload_, live_models(), result);
    add_measures(result);
    return result;
  }

 private:
  std::uint64_t train(std::size_t i, std::span<float> model) {
    if (samples_ >= experiment_.samples) return 0;  // all nodes together have used the run's samples
    const double direction = i >= honest_ && attacker_.kind() == AttackKind::ascent ? -1 : 1;
    const std::uint64_t used = trainers_[i].step(model, direction * experiment_.rate_at(samples_));
    const bool still_sane = attacker_.kind() == AttackKind::wild && 3 * samples_ < experiment_.samples;
    if (i >= honest_ && !still_sane) attacker_.corrupt(model, live_models());
    samples_ += used;
    return used;
  }

  [[nodiscard]] std::vector<std::span<const float>> live_models() const {
    std::vector<std::span<const float>> models;
    for (std::size_t i = 0; i < honest_; ++i)
      models.emplace_back(cluster_.node(i).client.model);
    return models;
  }

  [[nodiscard]] Record measure() const {
    // Corrections under way are included, because exchanges conserve only the sum with them.
    std::vector<std::vector<float>> whole;
    std::vector<std::span<const float>> models;
    double bytes = 0;
    for (std::size_t i = 0; i < honest_; ++i) {
      const auto values = cluster_.whole(i);
      whole.emplace_back(values.begin(), values.end());
      bytes += static_cast<double>(network_.bytes_sent(i));
    }
    for (const auto& model : whole)
      models.emplace_back(model);
    Record record = evaluate(workload_, models);
    record.time_s = static_cast<double>(schedule_.now_us()) / us_per_s;
    record.samples = samples_;
    record.bytes = bytes / static_cast<double>(honest_);
    for (std::size_t i = 0; i < experiment_.nodes; ++i)
      record.clocks.push_back(cluster_.node(i).client.clock);
    return record;
  }

  void add_measures(LearningRun& run) const {
    sim::add_counters(cluster_, run);
    double computed_s = 0;
    for (std::size_t i = 0; i < experiment_.nodes; ++i) {
      const auto steps = static_cast<double>(cluster_.node(i).client.steps);
      computed_s += steps * static_cast<double>(experiment_.step_us) / us_per_s / experiment_.speed(i);
    }
    run.computing = computed_s / (run.records.back().time_s * static_cast<double>(experiment_.nodes));
  }

  const Workload& workload_;
  const Experiment& experiment_;
  std::size_t honest_;  ///< number of honest nodes, which come first; only these are measured
  std::vector<Trainer> trainers_;
  Attacker attacker_;
  Schedule schedule_;
  Network network_;
  Cluster cluster_;
  std::uint64_t samples_ = 0;
};

}  // namespace

void add_counters(const Cluster& cluster, LearningRun& run) {
  using Counters = gossip::ReplicaCounters;
  Counters& sums = run.counters;
  for (const auto counter : {&Counters::initiated, &Counters::answered, &Counters::follow_ups, &Counters::busy_received,
                             &Counters::repeats_sent, &Counters::outer_steps, &Counters::publications,
                             &Counters::blocks, &Counters::wide_blocks})
    sums.*counter = cluster.count(counter);
  for (std::size_t i = 0; i < cluster.size(); ++i)
    if (const auto& replica = cluster.node(i).replica) sums.shift_sum += replica->counters().shift_sum;
  if (sums.blocks > 0) run.wide_share = static_cast<double>(sums.wide_blocks) / static_cast<double>(sums.blocks);
}

LearningRun run_gossip(const Workload& workload, const Experiment& experiment) {
  if (experiment.nodes < 2) throw UsageError("gossip takes at least 2 nodes");
  if (experiment.keepers > 0 && experiment.attack != AttackKind::none)
    throw UsageError("--keepers does not go with --attack");
  return GossipRun(workload, experiment).run();
}

}  // namespace gossamer::sim
