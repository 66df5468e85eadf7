// A learning experiment as values: its options and its results. gossip_run.hpp runs one on the shipped replicas,
// baseline.hpp on the methods they are compared with, and learn_report.hpp writes reports.

#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "gossip/replica/replica.hpp"
#include "tools/sim/learn/attack.hpp"
#include "tools/sim/learn/graph.hpp"
#include "tools/sim/learn/trainer.hpp"
#include "tools/sim/network.hpp"

namespace gossamer::sim {

/// How async-local's server applies an outer gradient.
enum class OuterRule : std::uint8_t { none, nesterov, delayed };

inline constexpr Named<OuterRule> outer_rules[] = {
    {"none", OuterRule::none}, {"delayed", OuterRule::delayed}, {"nesterov", OuterRule::nesterov}};

struct Experiment {
  std::size_t nodes = 8;
  std::string topology = "complete";
  Sharding sharding = {};
  std::size_t batch = 16;
  std::uint64_t samples = 0;  ///< samples of all nodes together at which training ends
  double learning_rate = 0.1;
  bool cosine = false;  ///< the learning rate falls to 0 along half a cosine; otherwise it is constant
  TrainerOptions trainer = {};
  std::uint64_t seed = 1;

  TimeUs step_us = 10'000;          ///< the step time of a node of speed 1
  double step_jitter = 0.05;        ///< a step takes step_us · (1 ± this)
  std::vector<double> speeds = {};  ///< the speeds of the first nodes; the others have speed 1
  PathConditions path = {};
  double node_bytes_per_s = 0;  ///< each way; 0: not limited
  double byte_scale = 1;        ///< messages count this many times, so that a small model can stand for a large one

  // Options of gossip only.
  std::size_t keepers = 0;  ///< this many further nodes hold a replica without training it
  gossip::ReplicaOptions replica = {};
  std::size_t fragments = 4;
  AttackKind attack = AttackKind::none;  ///< what the last nodes do; only the others are measured
  float wild_value = 1e30F;              ///< of the attack `wild`
  std::size_t attackers = 1;             ///< how many nodes are hostile if there is an attack
  bool certified = false;                ///< nodes have certificates, so that ReplicaOptions::dense_clip counts
  bool one_sponsor = false;              ///< the last `attackers` nodes, hostile or not, have one sponsor
  double memory_bytes_per_s = 1e10;      ///< the rate of memory traffic, by which serving fragments makes a step longer
  // Options of baselines that do not exchange every step (DiLoCo), or that code what they send (CHOCO).
  std::size_t period_steps = 1;
  OuterRule outer_rule = OuterRule::none;
  double outer_rate = 0.7;
  double outer_momentum = 0.9;
  double consensus_rate = 1;  ///< γ of CHOCO

  std::size_t evaluations = 100;  ///< evaluations of a run, evenly spread over its samples

  [[nodiscard]] double speed(std::size_t node) const { return node < speeds.size() ? speeds[node] : 1.0; }
  /// The rate after all nodes together have used `done` samples: it follows the job's clock, not the node's.
  [[nodiscard]] double rate_at(std::uint64_t done) const {
    if (!cosine) return learning_rate;
    const double progress = std::min(1.0, static_cast<double>(done) / static_cast<double>(samples));
    return learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * progress)) + learning_rate * 1e-3;
  }
};

/// One evaluation of the mean of the nodes' models.
struct Record {
  double time_s = 0;
  std::uint64_t samples = 0;  ///< of all nodes
  double bytes = 0;           ///< sent by a node, on average
  double loss = 0;
  double accuracy = 0;
  double consensus = 0;  ///< root mean square distance of a node's elements from the mean's
  std::vector<std::uint64_t> clocks = {};
};

struct LearningRun {
  std::string method = {};
  std::vector<Record> records = {};
  double worst_accuracy = 0;  ///< the worst accuracy of a single node's model at the end
  double worst_loss = 0;
  double wide_share = 0;                  ///< the share of wide blocks in exchanges
  gossip::ReplicaCounters counters = {};  ///< sums over nodes; for gossip only
  double computing = 0;  ///< the share of the nodes' time spent training: samples per second over the most possible
  double wall_s = 0;
};

/// The mean loss of the records after the first third.
[[nodiscard]] double stationary_loss(const LearningRun& run);

/// The mean of `models`, which all have the same length; there is at least one.
[[nodiscard]] std::vector<float> mean_of(std::span<const std::span<const float>> models);
/// Evaluates the mean of `models`, which all have the same length.
[[nodiscard]] Record evaluate(const Workload& workload, std::span<const std::span<const float>> models);
/// Fills in worst_accuracy and worst_loss.
void evaluate_nodes(const Workload& workload, std::span<const std::span<const float>> models, LearningRun& run);

/// The trainers of all nodes.
[[nodiscard]] std::vector<Trainer> make_trainers(const Workload& workload, const Experiment& experiment);

}  // namespace gossamer::sim
