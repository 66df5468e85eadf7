// How many bytes have come and gone on a TCP connection, as the kernel counts them. Any thread.

#pragma once

#include <cstdint>

namespace gossamer::peer {

struct TcpBytes {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
};

/// All 0 if the descriptor is no TCP connection.
[[nodiscard]] TcpBytes tcp_bytes(int descriptor);

}  // namespace gossamer::peer
