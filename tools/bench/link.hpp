// What one link moves: two overlays of this process on loopback, admitted and under CURVE as between two daemons, one
// of which sends the other replies of a given size as fast as it is let. All of peer/ is in it (flow control, framing,
// validation) and nothing of gossip/: beside raw ZeroMQ it tells what the link itself costs.

#pragma once

#include <vector>

#include "gossip/types.hpp"
#include "tools/bench/raw_zeromq.hpp"

namespace gossamer::bench {

struct LinkOptions {
  Codec codec = Codec::q8;
  std::size_t links = 1;  ///< each to a node of its own
  int io_threads = 1;     ///< of the sender; a receiver has one
  double seconds = 1;
};

struct LinkRun {
  Transport transport;  ///< of payload, over all links
  /// CPU of the loops' threads: what is done to a message before and after ZeroMQ.
  double hand_over_ns_per_byte = 0;
  double take_ns_per_byte = 0;
  /// CPU of each of the sender's I/O threads, as a share of them all; largest first.
  std::vector<double> io_shares;
};

/// After a start in which the links find their rate. Blocks; uses threads of its own.
[[nodiscard]] LinkRun link_run(const LinkOptions& options);

}  // namespace gossamer::bench
