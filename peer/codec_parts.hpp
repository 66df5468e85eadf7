// Between codec.cpp and codec_control.cpp only: the control half of the header.
//
// Pure. The readers throw kj::Exception on a broken pointer; decode() catches it.

#pragma once

#include <optional>

#include "peer/control_messages.hpp"
#include "peer/wire.capnp.h"

namespace gossamer::peer {

void write_control(const ControlMessage& message, wire::Header::Builder header);
/// Nothing if a field has a wrong length, or the header holds no control message.
[[nodiscard]] std::optional<ControlMessage> read_control(wire::Header::Reader header);

}  // namespace gossamer::peer
