// Writes and reads the parts of the header that are not gossip's. For codec.cpp, codec_control.cpp and
// codec_membership.cpp only.
//
// Pure. The readers throw kj::Exception on a broken pointer; decode() catches it.

#pragma once

#include <optional>

#include "gossip/membership/membership_messages.hpp"
#include "peer/wire/control_messages.hpp"
#include "peer/wire/wire.capnp.h"

namespace gossamer::peer {

void write_control(const ControlMessage& message, wire::Header::Builder header);
/// Nothing if a field has a wrong length, or the header holds no control message.
[[nodiscard]] std::optional<ControlMessage> read_control(wire::Header::Reader header);

void write_membership(const MembershipMessage& message, wire::Membership::Builder out);
/// True if this version knows the kind of the body.
[[nodiscard]] bool is_known_membership(wire::Membership::Reader in);
/// Nothing if a field has a wrong length or more elements than its bound. The rest is gossamer::valid()'s to check.
[[nodiscard]] std::optional<MembershipMessage> read_membership(wire::Membership::Reader in);

}  // namespace gossamer::peer
