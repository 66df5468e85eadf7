#include "tools/sim/learn/graph.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <set>
#include <string>

#include "gossip/replica/partners.hpp"
#include "tools/sim/commands.hpp"

namespace gossamer::sim {

namespace {

class Edges {
 public:
  explicit Edges(std::size_t nodes) : neighbours_(nodes) {}
  void add(std::size_t i, std::size_t j) {
    if (i == j) return;
    neighbours_[i].insert(j);
    neighbours_[j].insert(i);
  }
  [[nodiscard]] Graph graph() const {
    Graph graph;
    for (const auto& of_one : neighbours_)
      graph.emplace_back(of_one.begin(), of_one.end());
    return graph;
  }

 private:
  std::vector<std::set<std::size_t>> neighbours_;
};

void add_clique(Edges& edges, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t j = i + 1; j < end; ++j)
      edges.add(i, j);
  }
}

void add_torus(Edges& edges, std::size_t nodes) {
  auto height = static_cast<std::size_t>(std::sqrt(static_cast<double>(nodes)));
  while (height > 1 && nodes % height != 0)
    --height;
  const std::size_t width = nodes / std::max<std::size_t>(1, height);
  if (height < 2 || width < 2) throw UsageError("a torus takes a number of nodes that is a product, as 12 = 3 x 4");
  for (std::size_t i = 0; i < nodes; ++i) {
    edges.add(i, i / width * width + (i + 1) % width);
    edges.add(i, (i + width) % nodes);
  }
}

void add_regular(Edges& edges, std::size_t nodes, std::string_view degree_text) {
  std::uint32_t degree = 0;
  const auto [end, error] = std::from_chars(degree_text.data(), degree_text.data() + degree_text.size(), degree);
  const bool number = error == std::errc() && end == degree_text.data() + degree_text.size();
  if (!number || degree < 2 || degree >= nodes || (degree % 2 == 1 && nodes % 2 == 1)) {
    throw UsageError("regular-" + std::string(degree_text) + " is no graph of " + std::to_string(nodes) + " nodes");
  }
  for (const std::size_t offset : gossip::circulant_offsets(nodes, degree)) {
    for (std::size_t i = 0; i < nodes; ++i)
      edges.add(i, (i + offset) % nodes);
  }
}

}  // namespace

Graph make_graph(std::string_view topology, std::size_t nodes) {
  if (nodes == 0) throw UsageError("a cluster has at least one node");
  Edges edges(nodes);
  if (topology == "complete") {
    add_clique(edges, 0, nodes);
  } else if (topology == "ring" || topology == "chain") {
    for (std::size_t i = 0; i + 1 < nodes; ++i)
      edges.add(i, i + 1);
    if (topology == "ring") edges.add(nodes - 1, 0);
  } else if (topology == "torus") {
    add_torus(edges, nodes);
  } else if (topology == "hypercube") {
    if (!std::has_single_bit(nodes)) throw UsageError("a hypercube takes a power of two of nodes");
    for (std::size_t i = 0; i < nodes; ++i) {
      for (std::size_t bit = 1; bit < nodes; bit *= 2)
        edges.add(i, i ^ bit);
    }
  } else if (topology == "star") {
    for (std::size_t i = 1; i < nodes; ++i)
      edges.add(0, i);
  } else if (topology == "dumbbell") {
    if (nodes < 4 || nodes % 2 != 0) throw UsageError("a dumbbell takes an even number of nodes, at least 4");
    add_clique(edges, 0, nodes / 2);
    add_clique(edges, nodes / 2, nodes);
    edges.add(nodes / 2 - 1, nodes / 2);
  } else if (topology == "bridged") {
    if (nodes < 5 || nodes % 2 != 1) throw UsageError("a bridged dumbbell takes an odd number of nodes, at least 5");
    const std::size_t half = (nodes - 1) / 2;
    add_clique(edges, 0, half);
    add_clique(edges, half, nodes - 1);
    edges.add(half - 1, half);
    edges.add(half - 1, nodes - 1);
    edges.add(half, nodes - 1);
  } else if (topology.starts_with("regular-")) {
    add_regular(edges, nodes, topology.substr(8));
  } else {
    throw UsageError("unknown topology '" + std::string(topology) +
                     "'; there are complete, ring, chain, torus, hypercube, star, dumbbell, bridged and regular-K");
  }
  return edges.graph();
}

std::vector<std::vector<double>> metropolis_weights(const Graph& graph) {
  std::vector<std::vector<double>> weights(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    double own = 1;
    for (const std::size_t j : graph[i]) {
      weights[i].push_back(1.0 / (1.0 + static_cast<double>(std::max(graph[i].size(), graph[j].size()))));
      own -= weights[i].back();
    }
    weights[i].push_back(own);
  }
  return weights;
}

}  // namespace gossamer::sim
