// All-reduce in every step, no exchange at all, and DiLoCo: the methods in which all nodes do the same.

#include <algorithm>

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

/// Makes a ring all-reduce, after which all nodes hold the mean, and counts its time and bytes.
void all_reduce(Population& nodes) {
  const auto n = static_cast<double>(nodes.size());
  const std::vector<float> mean =
      mean_of(std::vector<std::span<const float>>(nodes.models.begin(), nodes.models.end()));
  for (auto& of_one : nodes.models)
    of_one = mean;
  if (nodes.size() == 1) return;
  const double part = static_cast<double>(mean.size() * sizeof(float)) * nodes.experiment.byte_scale / n;
  nodes.wait_for_all(2 * (n - 1) * nodes.message_s(part));
  for (double& sent : nodes.bytes)
    sent += 2 * (n - 1) * part;
}

class DiLoCo {
 public:
  explicit DiLoCo(const Population& nodes) : anchor_(nodes.models.front()), velocity_(nodes.elements()) {}

  void operator()(Population& nodes) {
    nodes.train_all();
    if (++steps_ % nodes.experiment.period_steps != 0) return;
    all_reduce(nodes);
    const auto rate = static_cast<float>(nodes.experiment.outer_rate);
    const auto keep = static_cast<float>(nodes.experiment.outer_momentum);
    for (std::size_t e = 0; e < anchor_.size(); ++e) {
      const float gradient = anchor_[e] - nodes.models.front()[e];
      velocity_[e] = keep * velocity_[e] + gradient;
      anchor_[e] -= rate * (gradient + keep * velocity_[e]);
    }
    std::fill(nodes.models.begin(), nodes.models.end(), anchor_);
  }

 private:
  std::vector<float> anchor_;
  std::vector<float> velocity_;
  std::size_t steps_ = 0;
};

}  // namespace

Baseline make_all_reduce(const Population&) {
  return [](Population& nodes) {
    nodes.train_all();
    all_reduce(nodes);
  };
}

Baseline make_local(const Population&) {
  return &Population::train_all;
}

Baseline make_diloco(const Population& nodes) {
  return DiLoCo(nodes);
}

}  // namespace gossamer::sim
