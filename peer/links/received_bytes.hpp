// How many bytes have come on a TCP connection, as the kernel counts them. Any thread.

#pragma once

#include <cstdint>

namespace gossamer::peer {

/// 0 if the descriptor is no TCP connection.
[[nodiscard]] std::uint64_t received_bytes(int descriptor);

}  // namespace gossamer::peer
