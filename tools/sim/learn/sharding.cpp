#include "tools/sim/learn/sharding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gossip/check.hpp"
#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

using Shards = std::vector<std::vector<std::uint32_t>>;

/// Gamma(shape, 1) (Marsaglia & Tsang 2000, "A simple method for generating gamma variables").
double gamma(gossip::Random& random, double shape) {
  if (shape < 1) return gamma(random, shape + 1) * std::pow(1 - random.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random);
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v > 0 && std::log1p(-random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

Shards equal_parts(std::span<const std::uint32_t> order, std::size_t nodes) {
  Shards parts(nodes);
  for (std::size_t node = 0; node < nodes; ++node) {
    const std::size_t begin = order.size() * node / nodes;
    const std::size_t end = order.size() * (node + 1) / nodes;
    parts[node].assign(order.begin() + static_cast<std::ptrdiff_t>(begin),
                       order.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return parts;
}

Shards dirichlet_parts(std::span<const std::uint32_t> by_label, std::span<const std::uint8_t> labels, std::size_t nodes,
                       double alpha, gossip::Random& random) {
  Shards parts(nodes);
  for (std::size_t begin = 0; begin < by_label.size();) {
    std::size_t end = begin;
    while (end < by_label.size() && labels[by_label[end]] == labels[by_label[begin]])
      ++end;
    std::vector<double> until(nodes);  // cumulative share
    for (double& share : until)
      share = gamma(random, alpha) + 1e-12;
    std::partial_sum(until.begin(), until.end(), until.begin());
    std::size_t next = begin;
    for (std::size_t node = 0; node < nodes; ++node) {
      const double share = node + 1 == nodes ? 1.0 : until[node] / until.back();
      const std::size_t stop = begin + static_cast<std::size_t>(std::lround(share * static_cast<double>(end - begin)));
      for (; next < stop; ++next)
        parts[node].push_back(by_label[next]);
    }
    begin = end;
  }
  for (auto& part : parts) {  // a node without examples gets one from the node with most
    if (!part.empty()) continue;
    auto& most =
        *std::max_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    part.push_back(most.back());
    most.pop_back();
  }
  return parts;
}

}  // namespace

Shards shards(std::span<const std::uint8_t> labels, std::size_t nodes, const Sharding& sharding,
              gossip::Random random) {
  GOSSAMER_CHECK(nodes > 0 && labels.size() >= nodes);
  std::vector<std::uint32_t> order(labels.size());
  std::iota(order.begin(), order.end(), 0U);
  random.shuffle(order);
  if (sharding.partition == Partition::shared) return Shards(nodes, order);
  if (sharding.partition == Partition::iid) return equal_parts(order, nodes);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return labels[a] < labels[b]; });
  if (sharding.partition == Partition::sorted) return equal_parts(order, nodes);
  return dirichlet_parts(order, labels, nodes, sharding.alpha, random);
}

}  // namespace gossamer::sim
