// Reference: what ZeroMQ itself moves over one loopback connection with CURVE, with nothing else to do: PUSH to PULL,
// frames of 1 MiB from memory larger than the caches, each frame read by the receiver.

#pragma once

#include <cstddef>

namespace gossamer::bench {

inline constexpr std::size_t raw_frame_bytes = std::size_t{1} << 20;

/// Bytes per second over about `seconds`, after a short start. Blocks; uses three threads of its own.
[[nodiscard]] double raw_zeromq_bytes_per_s(double seconds);

}  // namespace gossamer::bench
