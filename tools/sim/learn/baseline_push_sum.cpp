// Stochastic gradient push: messages go one way, to one peer in each step. A weight is mixed in the same way as the
// model; it says how much of the sum a node holds.

#include <algorithm>

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

class PushSum {
 public:
  explicit PushSum(const Population& nodes) : sums_(nodes.models), shares_(nodes.size(), 1.0) {}

  void operator()(Population& nodes) {
    const std::size_t n = nodes.size();
    for (std::size_t i = 0; i < n; ++i) {  // the gradient at x/w is applied to x
      const std::vector<float> before = nodes.models[i];
      nodes.train(i);
      for (std::size_t e = 0; e < before.size(); ++e)
        sums_[i][e] += nodes.models[i][e] - before[e];
    }
    if (n == 1) {
      nodes.models = sums_;
      return;
    }
    std::size_t offset = std::size_t{1} << exponent_;
    if (offset >= n) {
      exponent_ = 0;
      offset = 1;
    }
    ++exponent_;
    const auto sums = sums_;
    const auto shares = shares_;
    const double bytes = static_cast<double>((nodes.elements() + 1) * sizeof(float)) * nodes.experiment.byte_scale;
    const std::vector<double> ready = nodes.time_s;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t from = (i + n - offset) % n;
      shares_[i] = 0.5 * (shares[i] + shares[from]);
      for (std::size_t e = 0; e < nodes.elements(); ++e) {
        sums_[i][e] = 0.5F * (sums[i][e] + sums[from][e]);
        nodes.models[i][e] = sums_[i][e] / static_cast<float>(shares_[i]);
      }
      nodes.bytes[i] += bytes;
      nodes.time_s[i] = std::max(ready[i], ready[from] + nodes.message_s(bytes));
    }
  }

 private:
  std::vector<std::vector<float>> sums_;
  std::vector<double> shares_;
  std::size_t exponent_ = 0;
};

}  // namespace

Baseline make_push_sum(const Population& nodes) {
  return PushSum(nodes);
}

}  // namespace gossamer::sim
