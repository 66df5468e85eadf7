// What the kernel knows of a TCP connection, and how it sends on it. Any thread.

#pragma once

#include <cstdint>

namespace gossamer::peer {

struct TcpBytes {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
  /// Sent, and held by the other end's kernel because something before it was lost and has to come again.
  std::uint64_t held_behind_loss = 0;
};

/// All 0 if the descriptor is no TCP connection.
[[nodiscard]] TcpBytes tcp_bytes(int descriptor);

/// Chooses BBR as the congestion control (Cardwell et al., ACM Queue 14(5), 2016), if this kernel has it. Others take
/// each loss for a full queue: over 100 ms, one packet lost in a thousand leaves CUBIC and Reno some Mbit/s.
void use_bbr(int descriptor);

}  // namespace gossamer::peer
