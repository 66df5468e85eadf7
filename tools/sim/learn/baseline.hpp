// The methods that gossip is compared with, in their textbook form: rounds in which every node takes one step and then
// exchanges, none of them shipped. One file each, baseline_*.cpp.
//
// Time and bytes follow a cost model instead of messages: a node's round begins when it has what it waits for, its step
// takes what the experiment says, and sending b bytes takes latency + b/bandwidth. What a method waits for is its own:
// everyone (all-reduce), the neighbours (D-PSGD), or nobody.
//
// One thread.

#pragma once

#include <memory>
#include <string_view>

#include "gossip/random.hpp"
#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

/// All nodes of a synchronous run.
struct Population {
  Population(const Workload& workload, const Experiment& experiment);

  [[nodiscard]] std::size_t size() const { return models.size(); }
  [[nodiscard]] std::size_t elements() const { return models.front().size(); }
  /// Node i computes for one step: time, samples.
  void pass_step(std::size_t i, std::uint64_t used);
  /// Node i trains for one step on its model.
  void train(std::size_t i);
  void train_all();
  /// The learning rate now.
  [[nodiscard]] double rate() const { return experiment.rate_at(samples); }
  /// Seconds that one message of so many bytes takes.
  [[nodiscard]] double message_s(double bytes) const;
  /// Everyone waits for the last, and then so many seconds.
  void wait_for_all(double seconds);
  /// Each waits for its neighbours' last round, and then so many seconds.
  void wait_for_neighbours(double seconds);
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
  double computed_s = 0;  ///< by all nodes
  std::uint64_t samples = 0;
  gossip::Random random;
};

class Baseline {
 public:
  virtual ~Baseline() = default;
  /// Every node takes one step and exchanges what the method exchanges.
  virtual void round(Population& nodes) = 0;
};

/// "allreduce", "local", "dpsgd", "scclip", "choco", "diloco", "async-local", "tracking" or "pushsum"; null for another
/// name.
[[nodiscard]] std::unique_ptr<Baseline> make_baseline(std::string_view method, const Population& nodes);

/// Throws UsageError for an unknown method. Of the attacks, those by the model alone: after each round the last node
/// puts its lie in place of its model, and only the others are measured.
[[nodiscard]] LearningRun run_baseline(std::string_view method, const Workload& workload, const Experiment& experiment);

/// Rounds each block to 2^(bits−1) − 1 levels of its largest magnitude, to nearest: contractive for any input. CHOCO's
/// quantiser here. Nothing at 32 bits.
void round_to_levels(std::span<float> values, int bits);

// --- the methods
/// Synchronous SGD: a ring all-reduce of fp32 each step (Patarasuk & Yuan 2009), which takes 2(n−1) messages of 1/n of
/// the model one after the other. Averaging models after a step from equal models is averaging gradients.
[[nodiscard]] std::unique_ptr<Baseline> make_all_reduce();
/// No exchange: what the others are worth.
[[nodiscard]] std::unique_ptr<Baseline> make_local();
/// D-PSGD (Lian et al. 2017, 1705.09056, algorithm 1): x_i ← Σ_j W_ij·x_j − η·g_i(x_i).
[[nodiscard]] std::unique_ptr<Baseline> make_dpsgd();
/// D-PSGD with self-centred clipping (He, Karimireddy & Jaggi 2022, 2202.01545, eq. 4):
/// x_i ← Σ_j W_ij·(x_i + clip(x_j − x_i, τ_i)) − η·m_i, τ_i being the second largest distance to a neighbour (the rule
/// of the authors' experiments).
[[nodiscard]] std::unique_ptr<Baseline> make_scclip();
/// CHOCO-SGD (Koloskova, Stich & Jaggi 2019, 1902.00340, algorithms 1 and 2), quantised to the experiment's codec.
[[nodiscard]] std::unique_ptr<Baseline> make_choco(const Population& nodes);
/// DiLoCo (Douillard et al. 2023, 2311.08105, algorithm 1) by all-reduce every period_steps.
[[nodiscard]] std::unique_ptr<Baseline> make_diloco(const Population& nodes);
/// Asynchronous local SGD with one server (Liu et al. 2024, 2401.09135, algorithms 1 to 3), whose outer step is plain,
/// Nesterov's or delayed Nesterov's, as the experiment's `outer_rule` says. A round is one arrival.
[[nodiscard]] std::unique_ptr<Baseline> make_async_local(const Population& nodes);
/// Gradient tracking, DIGing (Nedić, Olshevsky & Shi 2017, 1607.03218, eq. 2): x ← W·x − η·y; y ← W·y + g⁺ − g.
[[nodiscard]] std::unique_ptr<Baseline> make_gradient_tracking(const Population& nodes);
/// Stochastic gradient push (Assran et al. 2019, 1811.10792, algorithm 1) on the one-peer directed exponential graph.
[[nodiscard]] std::unique_ptr<Baseline> make_push_sum(const Population& nodes);

}  // namespace gossamer::sim
