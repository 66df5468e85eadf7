// CHOCO-SGD: each node sends the quantised difference between its model and a copy of it that all its neighbours hold,
// and moves by γ towards the copies. Biased quantisers do no lasting harm; the price is the copies and the tuning of γ.

#include <cmath>

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

void round_to_levels(std::span<float> values, int bits) {
  if (bits >= 32) return;
  const float levels = std::ldexp(1.0F, bits - 1) - 1;
  for (std::size_t begin = 0; begin < values.size(); begin += block_elements) {
    const auto block = values.subspan(begin, std::min(block_elements, values.size() - begin));
    float largest = 0;
    for (const float value : block)
      largest = std::max(largest, std::fabs(value));
    if (!(largest > 0)) continue;
    for (float& value : block)
      value = std::nearbyint(value / largest * levels) * largest / levels;
  }
}

namespace {

class Choco {
 public:
  explicit Choco(const Population& nodes) : copies_(nodes.models) {}

  void operator()(Population& nodes) {
    nodes.train_all();
    const auto rate = static_cast<float>(nodes.experiment.consensus_rate);
    std::vector<std::vector<float>> mixed = copies_;
    nodes.mix(mixed);
    const int bits = codec_bits(nodes.experiment.replica.codec);
    std::vector<float> change(nodes.elements());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      std::vector<float>& model = nodes.models[i];
      for (std::size_t e = 0; e < model.size(); ++e) {
        model[e] += rate * (mixed[i][e] - copies_[i][e]);
        change[e] = model[e] - copies_[i][e];
      }
      round_to_levels(change, bits);
      for (std::size_t e = 0; e < model.size(); ++e)
        copies_[i][e] += change[e];
    }
    const std::size_t blocks = (nodes.elements() + block_elements - 1) / block_elements;
    const std::size_t scales = bits < 32 ? blocks * sizeof(float) : 0;
    const std::size_t value_bytes = nodes.elements() * static_cast<std::size_t>(bits) / 8;
    const double bytes = static_cast<double>(value_bytes + scales) * nodes.experiment.byte_scale;
    nodes.exchange_with_neighbours(bytes);
  }

 private:
  std::vector<std::vector<float>> copies_;  // x̂: the copy of each node that all others hold
};

}  // namespace

Baseline make_choco(const Population& nodes) {
  return Choco(nodes);
}

}  // namespace gossamer::sim
