// A fixed graph of the nodes that may exchange: the links of a simulated cluster, and the graph over which the
// synchronous baselines mix.
//
// Pure; any thread.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace gossamer::sim {

/// The neighbours of each node, ascending. Undirected, without loops.
using Graph = std::vector<std::vector<std::size_t>>;

/// `topology` is "complete", "ring", "torus", "hypercube", "star", "chain", "dumbbell" (two cliques joined by one
/// edge), "bridged" (a dumbbell, with the last node joined to both ends of its bridge) or "regular-K". Throws
/// UsageError for another name, and for a graph that n nodes cannot form.
[[nodiscard]] Graph make_graph(std::string_view topology, std::size_t nodes);

/// Row i: the weights of node i's neighbours in the order of the graph, then its own. Symmetric and doubly stochastic:
/// 1/(1 + max(degree_i, degree_j)) (Metropolis–Hastings, as Xiao & Boyd 2004 use it).
[[nodiscard]] std::vector<std::vector<double>> metropolis_weights(const Graph& graph);

}  // namespace gossamer::sim
