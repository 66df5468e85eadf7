// Decides what a node may say about a job, by the rights in its certificate (peer/keys/certificate.hpp).
//
// Pure, any thread.

#pragma once

#include <string_view>

#include "gossip/messages.hpp"
#include "peer/keys/certificate.hpp"

namespace gossamer::daemon {

/// Without the right to train a node may ask for a model and follow it; who trains the job gives to it and takes
/// nothing. `gives_only`: a follower's requests change nothing here, because the job is trained here and no server owns
/// it.
[[nodiscard]] bool may_say(const peer::Rights& rights, const Message& message, std::string_view job, bool gives_only);
/// Gives what is believed of the JobInfo of a node that may not train, namely that it is there and follows.
[[nodiscard]] JobInfo as_follower(JobInfo info);

/// Whether settings that another node tells of a job take the place of the present ones, as far as signatures go. With
/// an authority only it and its deputies change settings. What the job's programs have given at its founding is not
/// signed; nor is what a node takes that `joins`, and knows of nothing signed.
[[nodiscard]] bool may_set(const JobSettings& present, const JobSettings& heard,
                           const std::optional<peer::Deciders>& deciders, std::string_view job, bool joins);

}  // namespace gossamer::daemon
