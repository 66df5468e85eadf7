// SCClip: D-PSGD in which every node clips its neighbours' pull, so that a hostile neighbour cannot pull farther than
// an honest one. Nothing else differs from `dpsgd`.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/sim/learn/baseline.hpp"

namespace gossamer::sim {

namespace {

double distance_of(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0;
  for (std::size_t e = 0; e < a.size(); ++e)
    square += (double{a[e]} - b[e]) * (double{a[e]} - b[e]);
  return std::isfinite(square) ? std::sqrt(square) : std::numeric_limits<double>::infinity();
}

/// Adds Σ_j W_ij · clip(x_j − x_i, τ_i) to `mixed`, which holds x_i.
void mix_clipped(const Population& nodes, std::size_t i, std::vector<float>& mixed) {
  const auto& neighbours = nodes.graph[i];
  if (neighbours.empty()) return;
  std::vector<double> distances;
  for (const std::size_t j : neighbours)
    distances.push_back(distance_of(nodes.models[j], nodes.models[i]));
  std::vector<double> sorted = distances;
  std::sort(sorted.rbegin(), sorted.rend());
  const double threshold = sorted[sorted.size() > 1 ? 1 : 0];  // the second largest
  for (std::size_t k = 0; k < neighbours.size(); ++k) {
    if (!std::isfinite(distances[k])) continue;  // NaN or beyond fp32: clipped to nothing
    const double share = distances[k] > threshold ? threshold / distances[k] : 1;
    const auto weight = static_cast<float>(nodes.weights[i][k] * share);
    const std::vector<float>& from = nodes.models[neighbours[k]];
    for (std::size_t e = 0; e < mixed.size(); ++e)
      mixed[e] += weight * (from[e] - nodes.models[i][e]);
  }
}

}  // namespace

Baseline make_scclip(const Population&) {
  return [](Population& nodes) {
    std::vector<std::vector<float>> mixed = nodes.models;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      mix_clipped(nodes, i, mixed[i]);
    nodes.train_from(mixed);  // the method needs the worker's momentum
    nodes.exchange_with_neighbours(nodes.model_bytes());
  };
}

}  // namespace gossamer::sim
