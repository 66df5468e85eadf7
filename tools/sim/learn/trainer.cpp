#include "tools/sim/learn/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "gossip/check.hpp"

namespace gossamer::sim {

namespace {
constexpr float smoothing = 0.95F;    // smoothing of mean step sizes and mean squares
constexpr float compensation = 2.0F;  // λ0 of DC-ASGD-a
constexpr float smallest_square = 1e-7F;
}  // namespace

Trainer::Trainer(TrainerOptions options, std::unique_ptr<GradientSource> source, std::size_t elements)
    : options_(options), source_(std::move(source)), gradient_(elements), momentum_(elements) {
  if (options_.rule == LocalRule::gap_aware || options_.rule == LocalRule::compensated) scale_.resize(elements);
}

std::size_t Trainer::compute_gradient(std::span<const float> x) {
  const std::size_t samples = source_->gradient(x, gradient_).samples;
  if (options_.weight_decay > 0) {
    const auto decay = static_cast<float>(options_.weight_decay);
    for (std::size_t e = 0; e < x.size(); ++e)
      gradient_[e] += decay * x[e];
  }
  return samples;
}

std::size_t Trainer::step(std::span<float> x, double learning_rate) {
  GOSSAMER_CHECK(x.size() == gradient_.size());
  const std::size_t samples = compute_gradient(x);
  const auto rate = static_cast<float>(learning_rate);
  if (options_.rule == LocalRule::quasi_global) {
    quasi_global_step(x, rate);
    return samples;
  }
  if (options_.rule == LocalRule::gap_aware) damp_momentum(x);
  if (options_.rule == LocalRule::compensated) compensate_momentum(x);
  const auto keep = static_cast<float>(options_.momentum);
  float* v = momentum_.data();
  const float* g = gradient_.data();
  for (std::size_t e = 0; e < x.size(); ++e) {
    v[e] = keep * v[e] + g[e];
    x[e] -= rate * v[e];
  }
  if (options_.rule == LocalRule::gap_aware) {
    for (std::size_t e = 0; e < x.size(); ++e)
      scale_[e] = smoothing * scale_[e] + (1 - smoothing) * std::fabs(rate * v[e]);
  }
  if (!scale_.empty()) before_.assign(x.begin(), x.end());
  return samples;
}

void Trainer::quasi_global_step(std::span<float> x, float learning_rate) {
  const auto keep = static_cast<float>(options_.momentum);
  if (!before_.empty()) {
    const float share = (1 - keep) / last_rate_;
    for (std::size_t e = 0; e < x.size(); ++e)
      momentum_[e] = keep * momentum_[e] + share * (before_[e] - x[e]);
  }
  before_.assign(x.begin(), x.end());
  last_rate_ = learning_rate;
  for (std::size_t e = 0; e < x.size(); ++e)
    x[e] -= learning_rate * (keep * momentum_[e] + gradient_[e]);
}

void Trainer::damp_momentum(std::span<const float> x) {
  if (before_.empty()) return;
  for (std::size_t e = 0; e < x.size(); ++e) {
    const float gap = std::fabs(x[e] - before_[e]);
    if (gap > 0) momentum_[e] *= scale_[e] / (scale_[e] + gap);
  }
}

void Trainer::compensate_momentum(std::span<const float> x) {
  for (std::size_t e = 0; e < x.size(); ++e)
    scale_[e] = smoothing * scale_[e] + (1 - smoothing) * gradient_[e] * gradient_[e];
  if (before_.empty()) return;
  for (std::size_t e = 0; e < x.size(); ++e) {
    const float moved = x[e] - before_[e];
    const float change = compensation / std::sqrt(scale_[e] + smallest_square) * momentum_[e] * momentum_[e] * moved;
    // The correction is a first-order term, so it may not exceed the value that it corrects.
    const float bound = std::fabs(momentum_[e]);
    momentum_[e] += std::clamp(change, -bound, bound);
  }
}

}  // namespace gossamer::sim
