// Averaging without learning: every node holds a random vector, and the speed of agreement on the mean is measured.
// Methods: schedules of partner rules in exact arithmetic, CHOCO-gossip and its naive forerunner, the shipped replicas.
//
// One thread, one seed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer::sim {

struct ConsensusOptions {
  std::size_t nodes = 25;
  std::size_t elements = 1'024;
  std::size_t rounds = 60;
  std::string topology = "ring";  ///< for choco, plain and gossip
  double consensus_rate = 1;      ///< γ of CHOCO; codecs coarser than 4 bits with a scale for each block need less
  std::uint64_t seed = 1;
};

struct ConsensusPoint {
  double round = 0;  ///< for the shipped replicas: the number of periods
  double bytes = 0;  ///< sent by a node, on average
  double error = 1;  ///< mean square distance from the initial mean, relative to the first one
};

struct ConsensusCurve {
  std::string name;
  std::vector<ConsensusPoint> points;
};

/// `method` is one of
///   schedule:RULE  the matrices of a partner rule (gossip/replica/partners.hpp), exact, one after the other
///   mixing         Metropolis weights of the topology each round, exact
///   choco:CODEC    CHOCO-gossip (Koloskova et al. 2019, 1902.00340, algorithm 1) on the topology
///   plain:CODEC    the same weights on rounded vectors, without CHOCO's memory, without which it stalls
///   gossip:CODEC   the shipped replicas on the topology; a round is one period, in which each starts one exchange
/// Throws UsageError for another method, or for options that it cannot be run with.
[[nodiscard]] ConsensusCurve run_consensus(std::string_view method, const ConsensusOptions& options);

}  // namespace gossamer::sim
