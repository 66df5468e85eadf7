// D-PSGD and gradient tracking: in every step, exact averages with the neighbours of a fixed graph.

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

/// Each node waits for its neighbours; one message of so many bytes to each of them is counted.
void exchange_with_neighbours(Population& nodes, double bytes) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::size_t degree = nodes.graph[i].size();
    nodes.bytes[i] += bytes * static_cast<double>(degree);
    most = std::max(most, degree);
  }
  if (most > 0) nodes.wait_for_neighbours(nodes.message_s(bytes * static_cast<double>(most)));
}

double model_bytes(const Population& nodes) {
  return static_cast<double>(nodes.elements() * sizeof(float)) * nodes.experiment.byte_scale;
}

class Dpsgd final : public Baseline {
 public:
  void round(Population& nodes) override {
    // The gradient is taken at the models before they are mixed, so the exchange runs at the same time.
    std::vector<std::vector<float>> mixed = nodes.models;
    nodes.mix(mixed);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      std::vector<float>& model = nodes.models[i];
      const std::vector<float> before = model;
      nodes.train(i);
      for (std::size_t e = 0; e < model.size(); ++e)
        model[e] = mixed[i][e] + (model[e] - before[e]);
    }
    exchange_with_neighbours(nodes, model_bytes(nodes));
  }
};

class GradientTracking final : public Baseline {
 public:
  explicit GradientTracking(const Population& nodes) : last_(nodes.size()), tracked_(nodes.size()) {}

  void round(Population& nodes) override {
    // The method has no momentum: this is the rate that momentum would come to.
    const auto rate = static_cast<float>(nodes.rate() / (1 - nodes.experiment.trainer.momentum));
    const bool first = last_.front().empty();
    if (!first) nodes.mix(tracked_);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      nodes.pass_step(i, nodes.trainers[i].compute_gradient(nodes.models[i]));
      const auto gradient = nodes.trainers[i].gradient();
      if (first) {
        tracked_[i].assign(gradient.begin(), gradient.end());
      } else {
        for (std::size_t e = 0; e < gradient.size(); ++e)
          tracked_[i][e] += gradient[e] - last_[i][e];
      }
      last_[i].assign(gradient.begin(), gradient.end());
    }
    nodes.mix(nodes.models);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (std::size_t e = 0; e < nodes.elements(); ++e)
        nodes.models[i][e] -= rate * tracked_[i][e];
    }
    exchange_with_neighbours(nodes, 2 * model_bytes(nodes));
  }

 private:
  std::vector<std::vector<float>> last_;
  std::vector<std::vector<float>> tracked_;
};

}  // namespace

std::unique_ptr<Baseline> make_dpsgd() {
  return std::make_unique<Dpsgd>();
}
std::unique_ptr<Baseline> make_gradient_tracking(const Population& nodes) {
  return std::make_unique<GradientTracking>(nodes);
}

}  // namespace gossamer::sim
