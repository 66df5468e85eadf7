// What a node may say about a job, by the rights in its certificate (peer/keys/certificate.hpp).
//
// Pure, any thread.

#pragma once

#include <string_view>

#include "gossip/messages.hpp"
#include "peer/keys/certificate.hpp"

namespace gossamer::daemon {

/// Without the right to train a node may ask for a model and follow it. It is heard neither as a partner nor as
/// somebody to take a model from.
[[nodiscard]] bool may_say(const peer::Rights& rights, const Message& message, std::string_view job);

}  // namespace gossamer::daemon
