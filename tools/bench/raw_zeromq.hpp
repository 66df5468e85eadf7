// Reference: what ZeroMQ itself moves over one loopback connection, with CURVE or without, with nothing else to do:
// PUSH to PULL, frames from memory larger than the caches, each read by the receiver.

#pragma once

#include <cstddef>

namespace gossamer::bench {

inline constexpr std::size_t raw_frame_bytes = std::size_t{1} << 20;

/// What moving bytes over one connection came to.
struct Transport {
  double bytes_per_s = 0;
  /// CPU of ZeroMQ's thread at the sending end (encryption, the kernel's sending) and at the receiving one.
  double send_ns_per_byte = 0;
  double receive_ns_per_byte = 0;
};

/// Over about `seconds`, after a short start. Blocks; uses three threads of its own.
[[nodiscard]] Transport raw_zeromq(bool curve, std::size_t frame_bytes, double seconds);

}  // namespace gossamer::bench
