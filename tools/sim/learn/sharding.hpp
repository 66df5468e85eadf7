// Divides the examples among the nodes. The more the nodes' data differ, the harder averaging is.
//
// Pure; any thread.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gossip/random.hpp"
#include "tools/sim/learn/names.hpp"

namespace gossamer::sim {

enum class Partition : std::uint8_t {
  iid,        ///< shuffled, in equal parts
  shared,     ///< every node has all examples, and draws its own batches: the nodes' data do not differ
  sorted,     ///< ordered by label and cut into equal parts: a node knows one or two labels
  dirichlet,  ///< each label's examples split by a draw of Dirichlet(alpha) (Hsu, Qi & Brown 2019, 1909.06335)
};

inline constexpr Named<Partition> partitions[] = {{"iid", Partition::iid},
                                                  {"shared", Partition::shared},
                                                  {"sorted", Partition::sorted},
                                                  {"dirichlet", Partition::dirichlet}};

struct Sharding {
  Partition partition = Partition::iid;
  double alpha = 0.5;  ///< for dirichlet: small is unequal; the nodes' amounts of data differ, too
};

/// The indices of each node's examples: each example is at one node (`shared`: at every node). No node is without an
/// example. There are at least as many examples as nodes.
[[nodiscard]] std::vector<std::vector<std::uint32_t>> shards(std::span<const std::uint8_t> labels, std::size_t nodes,
                                                             const Sharding& sharding, gossip::Random random);

}  // namespace gossamer::sim
