// What the kernel lets come on strangers' connections, whether or not the loop has time to look.
//
// ZeroMQ's threads accept and read connections while the loop waits for a processor, and what they make of a handshake
// is up to 37 times as large as what came. So the bound has to hold without the loop. A filter of the kernel (BPF) cuts
// off or drops:
//
// - Before the loop has seen a connection, whatever is not the greeting that ZeroMQ sends before it is answered. To
//   count would not do: without the loop nobody knows where a segment belongs, and ZeroMQ is woken for small segments,
//   too, once their overhead has filled the kernel's buffer.
// - From then on, what exceeds max_stranger_bytes in all by more than one byte, which shows that there is more. The
//   filter compares TCP's numbers of bytes with the first one, which the kernel saves with the SYN. While it is flooded
//   with SYNs it saves none. Then little of each segment comes, and Connections limits the whole.
// - Once the connection is admitted, nothing.

#pragma once

#include <cstdint>

namespace gossamer::peer {

/// ZMTP's greeting (RFC 37, section 3.2): all that an end sends before the other one answers.
inline constexpr std::uint32_t unasked_bytes = 64;

/// The connections that this listening socket accepts are unseen. Linux only forgets to do it if memory runs out.
void guard_connections_of(int listening);
/// The loop has seen this connection of a stranger: it may send max_stranger_bytes. Nothing happens if it was seen
/// before, or is admitted.
void let_handshake(int descriptor);
/// The connection is admitted: whatever comes on it is read.
void let_all(int descriptor);

}  // namespace gossamer::peer
