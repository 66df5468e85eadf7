// Checks that a message is within the limits of gossip/messages.hpp: enumerations, bounds, exact sizes of its frames.
// Only its receiver knows whether it fits the job.
//
// The codec checks every message that is received, and asserts the check for every message that is sent. Pure, any
// thread.

#pragma once

#include <optional>
#include <string_view>

#include "gossip/messages.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

/// Says what is wrong; nothing if the message is valid.
[[nodiscard]] std::optional<std::string_view> fault_of(const Message& message);
[[nodiscard]] std::optional<std::string_view> fault_of(const ControlMessage& message);
[[nodiscard]] std::optional<std::string_view> fault_of(const BulkPart& part);

}  // namespace gossamer::peer
