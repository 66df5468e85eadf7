// Decides what a node may say about a job, by the rights in its certificate (peer/keys/certificate.hpp).
//
// Pure, any thread.

#pragma once

#include <string_view>

#include "gossip/messages.hpp"
#include "peer/keys/certificate.hpp"

namespace gossamer::daemon {

/// A node that may only follow may ask for a model and for exchanges, in which this node only gives. One that may only
/// keep jobs takes no part in exact averages.
[[nodiscard]] bool may_say(const peer::Rights& rights, const Message& message, std::string_view job);
/// Reduces a JobInfo to what is believed of a node with this role.
[[nodiscard]] JobInfo believed(JobInfo info, peer::NodeRole role);
/// Both of these: leaves of the message what is believed of a sender with these rights. False: nothing.
[[nodiscard]] bool is_heard(const peer::Rights& rights, Message& message, std::string_view job);

/// Whether settings of a job that another node tells may replace the present ones, as far as signatures go. With an
/// authority only it and its deputies change settings. Settings that programs give when they found the job need no
/// signature. Nor do settings for a node that joins or only follows (`has_no_say`), as long as its present ones are not
/// signed.
[[nodiscard]] bool may_set(const JobSettings& present, const JobSettings& heard,
                           const std::optional<peer::Deciders>& deciders, std::string_view job, bool has_no_say);

}  // namespace gossamer::daemon
