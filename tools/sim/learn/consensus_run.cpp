#include "tools/sim/learn/consensus_run.hpp"

#include <algorithm>
#include <functional>

#include "gossip/replica/partners.hpp"
#include "tools/sim/cluster.hpp"
#include "tools/sim/commands.hpp"
#include "tools/sim/draw.hpp"
#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

constexpr TimeUs period_us = 10'000;

using Vectors = std::vector<std::vector<float>>;

Vectors random_vectors(const ConsensusOptions& options) {
  gossip::Random random(options.seed);
  Vectors vectors(options.nodes, std::vector<float>(options.elements));
  for (auto& vector : vectors) {
    for (float& value : vector)
      value = static_cast<float>(normal(random));
  }
  return vectors;
}

/// Measures, after each round, the mean square distance of vectors from their initial mean.
class ConsensusRecorder {
 public:
  explicit ConsensusRecorder(const Vectors& initial) : mean_(initial.front().size()) {
    for (const auto& vector : initial) {
      for (std::size_t e = 0; e < mean_.size(); ++e)
        mean_[e] += vector[e] / static_cast<double>(initial.size());
    }
    initial_ = square(initial);
  }
  /// Takes the vectors after the next round, and the bytes that a node has sent so far.
  template <class Value>
  void add(const std::vector<std::vector<Value>>& vectors, double bytes) {
    curve_.points.push_back({static_cast<double>(curve_.points.size()), bytes, square(vectors) / initial_});
  }
  [[nodiscard]] const ConsensusCurve& curve() const { return curve_; }

 private:
  template <class Value>
  [[nodiscard]] double square(const std::vector<std::vector<Value>>& vectors) const {
    double sum = 0;
    for (const auto& vector : vectors) {
      for (std::size_t e = 0; e < mean_.size(); ++e) {
        const double distance = vector[e] - mean_[e];
        sum += distance * distance;
      }
    }
    return sum / static_cast<double>(vectors.size() * mean_.size());
  }
  std::vector<double> mean_;
  double initial_ = 1;
  ConsensusCurve curve_;
};

ConsensusCurve run_schedule(std::string_view name, const ConsensusOptions& options) {
  const auto policy = gossip::policy_of(name);
  if (!policy) throw UsageError("unknown partner rule '" + std::string(name) + "'");
  const gossip::PartnerRule rule{.policy = *policy};
  const auto objection = gossip::objection(rule, options.nodes);
  if (objection) throw UsageError(*objection);
  if (gossip::schedule_period(rule, options.nodes) == 0)
    throw UsageError("the partner rule " + std::string(name) + " has no schedule");
  const Vectors initial = random_vectors(options);
  ConsensusRecorder recorder(initial);
  std::vector<std::vector<double>> x;
  for (const auto& vector : initial)
    x.emplace_back(vector.begin(), vector.end());
  double bytes = 0;
  for (std::size_t round = 0; round <= options.rounds; ++round) {
    recorder.add(x, bytes);
    const auto weights = gossip::schedule(rule, options.nodes, round);
    std::vector<std::vector<double>> next(options.nodes, std::vector<double>(options.elements));
    std::size_t messages = 0;
    for (std::size_t i = 0; i < options.nodes; ++i) {
      for (std::size_t j = 0; j < options.nodes; ++j) {
        const double weight = weights[i * options.nodes + j];
        if (weight == 0) continue;
        if (i != j) ++messages;
        for (std::size_t e = 0; e < options.elements; ++e)
          next[i][e] += weight * x[j][e];
      }
    }
    bytes += static_cast<double>(messages * options.elements * sizeof(float)) / static_cast<double>(options.nodes);
    x = std::move(next);
  }
  return recorder.curve();
}

/// Runs the rounds of a synchronous method.
ConsensusCurve run_rounds(const ConsensusOptions& options, Experiment experiment,
                          const std::function<Baseline(const Population&)>& make_round) {
  experiment.nodes = options.nodes;
  experiment.topology = options.topology;
  experiment.trainer.momentum = 0;
  experiment.samples = 1;
  // There is nothing to learn: all gradients are 0.
  const auto flat = make_quadratic({.elements = options.elements, .curvature = 0, .sigma = 0});
  Population nodes(*flat, experiment);
  // The method is made while all models are equal, so that its copies of the neighbours do not contain the vectors
  // below.
  const Baseline round = make_round(nodes);
  nodes.models = random_vectors(options);
  ConsensusRecorder recorder(nodes.models);
  for (std::size_t n = 0; n <= options.rounds; ++n) {
    double bytes = 0;
    for (const double sent : nodes.bytes)
      bytes += sent / static_cast<double>(options.nodes);
    recorder.add(nodes.models, bytes);
    round(nodes);
  }
  return recorder.curve();
}

ConsensusCurve run_choco(Codec codec, const ConsensusOptions& options) {
  Experiment experiment;
  experiment.replica.codec = codec;
  experiment.consensus_rate = options.consensus_rate;
  return run_rounds(options, experiment, make_choco);
}

ConsensusCurve run_plain(Codec codec, const ConsensusOptions& options) {
  const Baseline round = [codec](Population& nodes) {
    for (auto& model : nodes.models)
      round_to_levels(model, codec_bits(codec));
    nodes.mix(nodes.models);
    const double bytes = static_cast<double>(nodes.elements()) * codec_bits(codec) / 8;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      nodes.bytes[i] += bytes * static_cast<double>(nodes.graph[i].size());
  };
  return run_rounds(options, {}, [&](const Population&) { return round; });
}

ConsensusCurve run_replicas(Codec codec, const ConsensusOptions& options) {
  if (options.nodes < 2) throw UsageError("gossip takes at least 2 nodes");
  const std::size_t padded = (options.elements + block_elements - 1) / block_elements * block_elements;
  if (padded > max_fragment_elements) throw UsageError("--elements is more than a fragment holds");
  Schedule schedule;
  Network network(schedule, gossip::Random(options.seed + 1), options.nodes, {.latency_us = 200});
  gossip::ReplicaOptions replica{.codec = codec, .period_us = period_us};
  replica.time_share = replica.network_share = 0;
  Cluster cluster({.elements = options.elements,
                   .fragment_elements = padded,
                   .replica = replica,
                   .step_us = period_us / 4,
                   .tick_us = period_us / 10,
                   .seed = options.seed + 2},
                  schedule, network);
  const Vectors initial = random_vectors(options);
  ConsensusRecorder recorder(initial);
  const Graph graph = make_graph(options.topology, options.nodes);
  for (const auto& vector : initial)
    cluster.start_daemon(cluster.add_node(vector), false);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    for (const std::size_t j : graph[i])
      cluster.link(i, j);
  }
  for (std::size_t n = 0; n <= options.rounds; ++n) {
    cluster.run_until(static_cast<TimeUs>(n) * period_us);
    std::vector<std::vector<double>> whole;
    double bytes = 0;
    for (std::size_t i = 0; i < options.nodes; ++i) {
      whole.push_back(cluster.whole(i));
      bytes += static_cast<double>(network.bytes_sent(i)) / static_cast<double>(options.nodes);
    }
    recorder.add(whole, bytes);
  }
  return recorder.curve();
}

ConsensusCurve run_named(std::string_view method, const ConsensusOptions& options) {
  const auto after = [&](std::string_view prefix) { return method.substr(prefix.size()); };
  if (method.starts_with("schedule:")) return run_schedule(after("schedule:"), options);
  if (method == "mixing") return run_plain(Codec::f32, options);
  if (method.starts_with("choco:")) return run_choco(value_named("codec", after("choco:"), codecs), options);
  if (method.starts_with("plain:")) return run_plain(value_named("codec", after("plain:"), codecs), options);
  if (method.starts_with("gossip:")) return run_replicas(value_named("codec", after("gossip:"), codecs), options);
  throw UsageError("unknown method '" + std::string(method) +
                   "'; there are schedule:RULE, mixing, choco:CODEC, plain:CODEC and gossip:CODEC");
}

}  // namespace

ConsensusCurve run_consensus(std::string_view method, const ConsensusOptions& options) {
  if (options.nodes < 2) throw UsageError("averaging takes at least 2 nodes");
  if (options.elements == 0 || options.rounds == 0) throw UsageError("--elements and --rounds are positive");
  ConsensusCurve curve = run_named(method, options);
  curve.name = method;
  return curve;
}

}  // namespace gossamer::sim
