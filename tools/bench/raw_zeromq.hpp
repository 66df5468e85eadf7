// Reference: the rate of ZeroMQ itself over one loopback connection, with CURVE or without, with nothing else to do:
// PUSH to PULL, frames from memory larger than the caches, and the receiver reads each frame.

#pragma once

#include <cstddef>

namespace gossamer::bench {

inline constexpr std::size_t raw_frame_bytes = std::size_t{1} << 20;

/// The result of moving bytes over one connection.
struct Transport {
  double bytes_per_s = 0;
  /// CPU time of ZeroMQ's thread at the sending end (encryption, the kernel's sending), and at the receiving end.
  double send_ns_per_byte = 0;
  double receive_ns_per_byte = 0;
};

/// Measures for about `seconds`, after a short start. Blocks, and uses three threads of its own.
[[nodiscard]] Transport raw_zeromq(bool curve, std::size_t frame_bytes, double seconds);

}  // namespace gossamer::bench
