// One node's optimiser: what training code does between two calls of gossamer_step(), on true gradients.
//
// Gossamer's client adds corrections between steps, never during one, so a gradient is always applied to the weights it
// was computed at. After a correction only the momentum is stale: it belongs to the model before mixing. The rules
// differ in how they treat this stale momentum.
//
// One node, one thread.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tools/sim/learn/workload.hpp"

namespace gossamer::sim {

enum class LocalRule : std::uint8_t {
  sgd,           ///< v ← μ·v + g; x ← x − η·v
  quasi_global,  ///< momentum from the model's displacement, mixing included (Lin et al. 2021, 2102.04761, algorithm 1)
  gap_aware,  ///< first v ← v / (1 + |mixed| / C): C is the mean size of a step, |mixed| how far mixing has moved an
              ///< element since the last step (after Barkai, Hakimi & Schuster 2019, 1909.10802)
  compensated,  ///< first v ← v + λ·v²·mixed / √MS (after Zheng et al. 2017, 1609.08326, DC-ASGD-a)
};

inline constexpr Named<LocalRule> local_rules[] = {{"sgd", LocalRule::sgd},
                                                   {"qgm", LocalRule::quasi_global},
                                                   {"gap-aware", LocalRule::gap_aware},
                                                   {"dc", LocalRule::compensated}};

struct TrainerOptions {
  LocalRule rule = LocalRule::sgd;
  double momentum = 0.9;
  double weight_decay = 0;
};

class Trainer {
 public:
  Trainer(TrainerOptions options, std::unique_ptr<GradientSource> source, std::size_t elements);

  /// Takes one step in place; returns the samples used.
  std::size_t step(std::span<float> x, double learning_rate);

  /// The gradient of the last step, weight decay included.
  [[nodiscard]] std::span<const float> gradient() const { return gradient_; }
  /// Computes gradient() without a step; returns the samples used.
  std::size_t compute_gradient(std::span<const float> x);

 private:
  void quasi_global_step(std::span<float> x, float learning_rate);
  void damp_momentum(std::span<const float> x);
  void compensate_momentum(std::span<const float> x);

  TrainerOptions options_;
  std::unique_ptr<GradientSource> source_;
  std::vector<float> gradient_;
  std::vector<float> momentum_;
  std::vector<float> before_;  // quasi_global: the model when the last step began; otherwise when it ended
  std::vector<float> scale_;   // gap_aware: mean |step|; compensated: mean g²
  float last_rate_ = 0;
};

}  // namespace gossamer::sim
