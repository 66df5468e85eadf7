// Turns messages into frames and back: a Cap'n Proto header (peer/wire/wire.capnp), then raw payload frames
// (docs/reference/wire.md).
//
// Pure functions, any thread. decode() believes nothing: what it returns is within the limits of gossip/messages.hpp,
// gossip/membership/membership_messages.hpp and peer/limits.hpp, its frames have exactly the sizes that the header
// implies, and no allocation depends on a number that was not checked. encode() takes our own messages, which are
// asserted to be what decode() would accept.

#pragma once

#include <expected>

#include "gossip/membership/membership_messages.hpp"
#include "gossip/messages.hpp"
#include "peer/limits.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

/// One message as frames. The payload is shared with the message, not copied.
struct Frames {
  Bytes header;
  std::array<Bytes, max_payload_frames> payload;
  std::size_t payload_count = 0;

  [[nodiscard]] std::size_t payload_bytes() const;
  [[nodiscard]] std::size_t bytes() const { return header.size() + payload_bytes(); }
};

using Packet = std::variant<ControlMessage, Message, MembershipMessage, BulkPart>;

struct DecodeError {
  enum class Kind {
    malformed,  ///< against the protocol
    unknown,    ///< a kind that only newer nodes know; to be ignored
  };
  Kind kind = Kind::malformed;
  std::string text;
};

[[nodiscard]] Frames encode(const ControlMessage& message);
[[nodiscard]] Frames encode(const Message& message);
[[nodiscard]] Frames encode(const MembershipMessage& message);
[[nodiscard]] Frames encode(const BulkPart& part);
/// The header frame may have any alignment; payload frames with more than one byte an element must be aligned to 8.
[[nodiscard]] std::expected<Packet, DecodeError> decode(const Frames& frames);

/// The channel on which a message travels: requests, replies and pulls on bulk, all others on control.
[[nodiscard]] Channel channel_of(const Message& message);

}  // namespace gossamer::peer
