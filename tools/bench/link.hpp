// The rate of one link. Two overlays of this process on loopback are admitted and encrypted as between two daemons,
// and one sends the other replies of a given size as fast as the link accepts them. This covers all of peer/ (flow
// control, framing, validation) and nothing of gossip/; compared with raw ZeroMQ it shows the cost of the link itself.

#pragma once

#include <vector>

#include "gossip/types.hpp"
#include "peer/limits.hpp"
#include "tools/bench/raw_zeromq.hpp"

namespace gossamer::bench {

struct LinkOptions {
  Codec codec = Codec::q8;
  peer::BulkProtection bulk = peer::BulkProtection::sealed;
  std::size_t links = 1;  ///< each link goes to a node of its own
  int io_threads = 1;     ///< threads of the sender; a receiver has one
  double seconds = 1;
};

struct LinkRun {
  Transport transport;  ///< payload over all links
  /// CPU time of the loops' threads, for the work on a message before and after ZeroMQ.
  double hand_over_ns_per_byte = 0;
  double take_ns_per_byte = 0;
  /// The CPU time of each of the sender's I/O threads as a share of them all; largest first.
  std::vector<double> io_shares;
};

/// Measures after a start in which the links find their rate. Blocks, and uses threads of its own.
[[nodiscard]] LinkRun link_run(const LinkOptions& options);

}  // namespace gossamer::bench
