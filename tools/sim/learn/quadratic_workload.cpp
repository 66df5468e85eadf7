// Noisy quadratics, a workload with a known solution. Let η be the learning rate, and let averaging keep the mean of
// the n nodes' models. Then the mean is itself a run of SGD with noise σ/√n, and its stationary variance is
// η·σ²/(n·h·(2 − η·h)) for each element, whatever the topology, the codec and the cadence.
//
// One thread.

#include <cmath>
#include <limits>

#include "tools/sim/draw.hpp"
#include "tools/sim/learn/workload.hpp"

namespace gossamer::sim {

namespace {

class QuadraticSource final : public GradientSource {
 public:
  QuadraticSource(const QuadraticOptions& options, std::vector<float> centre, gossip::Random random)
      : curvature_(static_cast<float>(options.curvature)),
        sigma_(options.sigma),
        centre_(std::move(centre)),
        random_(random) {}

  Batch gradient(std::span<const float> x, std::span<float> g) override {
    // Box & Muller, using both numbers of each pair, because most of a run's time is spent here.
    for (std::size_t e = 0; e < x.size(); e += 2) {
      const double radius = sigma_ * std::sqrt(-2.0 * std::log1p(-random_.uniform()));
      const double angle = 2.0 * std::numbers::pi * random_.uniform();
      g[e] = static_cast<float>(radius * std::cos(angle));
      if (e + 1 < x.size()) g[e + 1] = static_cast<float>(radius * std::sin(angle));
    }
    double loss = 0;
    for (std::size_t e = 0; e < x.size(); ++e) {
      const float distance = x[e] - centre_[e];
      loss += static_cast<double>(x[e] * g[e] + 0.5F * curvature_ * distance * distance);
      g[e] += curvature_ * distance;
    }
    return {1, loss};
  }

 private:
  float curvature_;
  double sigma_;
  std::vector<float> centre_;
  gossip::Random random_;
};

class QuadraticWorkload final : public Workload {
 public:
  explicit QuadraticWorkload(const QuadraticOptions& options) : options_(options) {}

  [[nodiscard]] std::size_t elements() const override { return options_.elements; }

  [[nodiscard]] std::vector<float> initial(std::uint64_t seed) const override {
    gossip::Random random(seed);
    std::vector<float> x(options_.elements);
    for (float& value : x)
      value = static_cast<float>(normal(random));
    return x;
  }

  [[nodiscard]] std::unique_ptr<GradientSource> make_source(const SourceOptions& options) const override {
    std::vector<float> centre(options_.elements);
    if (options.sharding.partition != Partition::iid) {
      // All nodes' centres are drawn, so that their mean can be subtracted.
      gossip::Random random(options.seed);
      std::vector<double> mean(options_.elements);
      for (std::size_t node = 0; node < options.nodes; ++node) {
        for (std::size_t e = 0; e < options_.elements; ++e) {
          const double value = options_.spread * normal(random);
          mean[e] += value / static_cast<double>(options.nodes);
          if (node == options.node) centre[e] = static_cast<float>(value);
        }
      }
      for (std::size_t e = 0; e < options_.elements; ++e)
        centre[e] -= static_cast<float>(mean[e]);
    }
    gossip::Random seeds(options.seed + 0x9e37 * (options.node + 1));
    return std::make_unique<QuadraticSource>(options_, std::move(centre), gossip::Random(seeds.next()));
  }

  [[nodiscard]] Quality quality(std::span<const float> x) const override {
    double square = 0;
    for (const float value : x)
      square += static_cast<double>(value) * value;
    return {0.5 * options_.curvature * square / static_cast<double>(x.size()),
            std::numeric_limits<double>::quiet_NaN()};
  }

 private:
  QuadraticOptions options_;
};

}  // namespace

std::unique_ptr<Workload> make_quadratic(const QuadraticOptions& options) {
  return std::make_unique<QuadraticWorkload>(options);
}

}  // namespace gossamer::sim
