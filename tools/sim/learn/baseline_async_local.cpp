// Asynchronous local SGD: workers of unequal speed take period_steps steps each from the server's model, and the server
// applies each outer gradient when it arrives. With Nesterov momentum, every arrival also moves the model by the
// momentum of the others' older gradients; so the rate that is best for synchronous rounds is too large.

#include <algorithm>

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

class AsyncLocal {
 public:
  explicit AsyncLocal(const Population& nodes)
      : server_(nodes.models.front()), begun_(nodes.models), velocity_(nodes.elements()), gathered_(nodes.elements()) {}

  /// One round is one arrival.
  void operator()(Population& nodes) {
    const std::size_t i = next(nodes);
    nodes.models[i] = begun_[i];
    for (std::size_t step = 0; step < nodes.experiment.period_steps; ++step)
      nodes.train(i);
    const double bytes = nodes.model_bytes();
    nodes.time_s[i] += 2 * nodes.message_s(bytes);
    nodes.bytes[i] += bytes;
    arrive(nodes.experiment, nodes.size(), begun_[i], nodes.models[i]);
    begun_[i] = server_;
    std::fill(nodes.models.begin(), nodes.models.end(), server_);  // because evaluations read the nodes' models
  }

 private:
  /// The worker whose steps are done first.
  static std::size_t next(const Population& nodes) {
    const double steps_s =
        static_cast<double>(nodes.experiment.period_steps) * static_cast<double>(nodes.experiment.step_us) / us_per_s;
    std::size_t first = 0;
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      if (nodes.time_s[i] + steps_s / nodes.experiment.speed(i) <
          nodes.time_s[first] + steps_s / nodes.experiment.speed(first))
        first = i;
    }
    return first;
  }

  void arrive(const Experiment& experiment, std::size_t workers, std::span<const float> from,
              std::span<const float> to) {
    const auto rate = static_cast<float>(experiment.outer_rate);
    const auto keep = static_cast<float>(experiment.outer_momentum);
    const auto share = 1 / static_cast<float>(workers);
    const OuterRule rule = experiment.outer_rule;
    const bool last = ++arrivals_ % workers == 0;
    for (std::size_t e = 0; e < server_.size(); ++e) {
      const float gradient = from[e] - to[e];
      if (rule == OuterRule::nesterov) {
        velocity_[e] = keep * velocity_[e] + gradient;
        server_[e] -= rate * (gradient + keep * velocity_[e]);
      } else if (rule == OuterRule::delayed) {  // plain steps; every n-th arrival adds the momentum of all
        gathered_[e] += share * gradient;
        server_[e] -= rate * share * gradient;
        if (!last) continue;
        velocity_[e] = keep * velocity_[e] + gathered_[e];
        gathered_[e] = 0;
        server_[e] -= rate * keep * velocity_[e];
      } else {
        server_[e] -= rate * gradient;
      }
    }
  }

  std::vector<float> server_;
  std::vector<std::vector<float>> begun_;  // for each worker, the server's model from which its steps began
  std::vector<float> velocity_;
  std::vector<float> gathered_;  // delayed Nesterov: the mean gradient since the velocity changed
  std::uint64_t arrivals_ = 0;
};

}  // namespace

Baseline make_async_local(const Population& nodes) {
  return AsyncLocal(nodes);
}

}  // namespace gossamer::sim
