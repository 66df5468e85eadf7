// The methods that gossip is compared with, in their textbook form: in each round every node takes one step and then
// exchanges. They are not shipped. One file each, baseline_*.cpp.
//
// A cost model gives time and bytes; there are no messages. A node's round begins when it has received what it waits
// for. A step takes the experiment's step time, and sending b bytes takes latency + b/bandwidth. Depending on the
// method, a node waits for everyone (all-reduce), for its neighbours (D-PSGD), or for nobody.
//
// One thread.

#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "gossip/random.hpp"
#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

/// All nodes of a synchronous run.
struct Population {
  Population(const Workload& workload, const Experiment& experiment);

  [[nodiscard]] std::size_t size() const { return models.size(); }
  [[nodiscard]] std::size_t elements() const { return models.front().size(); }
  /// Counts the time and samples of one step of node i.
  void pass_step(std::size_t i, std::uint64_t used);
  /// Trains node i's model for one step.
  void train(std::size_t i);
  void train_all();
  /// Trains each model for one step. The new model is the node's vector of `mixed` plus the change by that step.
  void train_from(const std::vector<std::vector<float>>& mixed);
  /// The present learning rate.
  [[nodiscard]] double rate() const { return experiment.rate_at(samples); }
  /// The seconds that a message of `bytes` bytes takes.
  [[nodiscard]] double message_s(double bytes) const;
  /// All nodes wait for the last one, and then for `seconds`.
  void wait_for_all(double seconds);
  /// Each node waits for its neighbours' last round, and then for `seconds`.
  void wait_for_neighbours(double seconds);
  /// Bytes of one model as a message.
  [[nodiscard]] double model_bytes() const {
    return static_cast<double>(elements() * sizeof(float)) * experiment.byte_scale;
  }
  /// Each node sends a message of `bytes_each` to each of its neighbours, and waits for theirs.
  void exchange_with_neighbours(double bytes_each);
  /// x_i ← Σ_j W_ij·x_j with the Metropolis weights of the graph; `values` holds one vector for each node.
  void mix(std::vector<std::vector<float>>& values) const;

  const Experiment& experiment;
  std::vector<Trainer> trainers;
  std::vector<std::vector<float>> models;
  Graph graph;
  std::vector<std::vector<double>> weights;
  std::vector<double> time_s;
  std::vector<double> bytes;
  std::vector<std::uint64_t> clocks;
  double computed_s = 0;  ///< computing time of all nodes
  std::uint64_t samples = 0;
  gossip::Random random;
};

/// One round of a method: every node takes one step and makes the method's exchange. The function object holds what the
/// method remembers from one round to the next.
using Baseline = std::function<void(Population& nodes)>;

/// Throws UsageError for an unknown method. Of the attacks, only those that change the model alone are possible: after
/// each round the last node replaces its model, and only the others are measured.
[[nodiscard]] LearningRun run_baseline(std::string_view method, const Workload& workload, const Experiment& experiment);

/// Rounds each block to the nearest of 2^(bits−1) − 1 levels of its largest magnitude; does nothing at 32 bits. It is
/// contractive for any input, and is CHOCO's quantiser here.
void round_to_levels(std::span<float> values, int bits);

// --- the methods, made for nodes that have not begun
/// Synchronous SGD with a ring all-reduce of fp32 in each step (Patarasuk & Yuan 2009): 2(n−1) messages of 1/n of the
/// model one after the other. Averaging models after a step from equal models equals averaging gradients.
[[nodiscard]] Baseline make_all_reduce(const Population& nodes);
/// Each node trains alone, to show what the exchange is worth.
[[nodiscard]] Baseline make_local(const Population& nodes);
/// D-PSGD (Lian et al. 2017, 1705.09056, algorithm 1): x_i ← Σ_j W_ij·x_j − η·g_i(x_i).
[[nodiscard]] Baseline make_dpsgd(const Population& nodes);
/// D-PSGD with self-centred clipping (He, Karimireddy & Jaggi 2022, 2202.01545, eq. 4):
/// x_i ← Σ_j W_ij·(x_i + clip(x_j − x_i, τ_i)) − η·m_i. τ_i is the second largest distance to a neighbour, which is the
/// rule of the authors' experiments.
[[nodiscard]] Baseline make_scclip(const Population& nodes);
/// CHOCO-SGD (Koloskova, Stich & Jaggi 2019, 1902.00340, algorithms 1 and 2), quantised to the experiment's codec.
[[nodiscard]] Baseline make_choco(const Population& nodes);
/// DiLoCo (Douillard et al. 2023, 2311.08105, algorithm 1) by all-reduce every period_steps.
[[nodiscard]] Baseline make_diloco(const Population& nodes);
/// Asynchronous local SGD with one server (Liu et al. 2024, 2401.09135, algorithms 1 to 3). Its outer step is plain,
/// Nesterov's or delayed Nesterov's, by the experiment's `outer_rule`. A round is one arrival.
[[nodiscard]] Baseline make_async_local(const Population& nodes);
/// A parameter server (Dean et al. 2012, "Large scale distributed deep networks", Downpour). It adds a worker's
/// progress times outer_rate, with `age_damping` divided by its age in pushes of others (Zhang et al. 2016,
/// 1511.05950). A round is one step of one worker.
[[nodiscard]] Baseline make_server(const Population& nodes);
/// Gradient tracking, DIGing (Nedić, Olshevsky & Shi 2017, 1607.03218, eq. 2): x ← W·x − η·y; y ← W·y + g⁺ − g.
[[nodiscard]] Baseline make_gradient_tracking(const Population& nodes);
/// Stochastic gradient push (Assran et al. 2019, 1811.10792, algorithm 1) on the one-peer directed exponential graph.
[[nodiscard]] Baseline make_push_sum(const Population& nodes);

}  // namespace gossamer::sim
