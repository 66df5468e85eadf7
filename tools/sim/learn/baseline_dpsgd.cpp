// D-PSGD and gradient tracking: in every step, exact averages with the neighbours of a fixed graph.

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

class GradientTracking {
 public:
  explicit GradientTracking(const Population& nodes) : last_(nodes.size()), tracked_(nodes.size()) {}

  void operator()(Population& nodes) {
    // The method has no momentum, so its rate is the effective rate of SGD with momentum.
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
    nodes.exchange_with_neighbours(2 * nodes.model_bytes());
  }

 private:
  std::vector<std::vector<float>> last_;
  std::vector<std::vector<float>> tracked_;
};

}  // namespace

Baseline make_dpsgd(const Population&) {
  return [](Population& nodes) {
    // The gradient is taken at the models before they are mixed, so the exchange runs at the same time.
    std::vector<std::vector<float>> mixed = nodes.models;
    nodes.mix(mixed);
    nodes.train_from(mixed);
    nodes.exchange_with_neighbours(nodes.model_bytes());
  };
}

Baseline make_gradient_tracking(const Population& nodes) {
  return GradientTracking(nodes);
}

}  // namespace gossamer::sim
