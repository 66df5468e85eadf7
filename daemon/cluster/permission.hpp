// Decides what a node may say about a job, by the rights in its certificate (peer/keys/certificate.hpp).
//
// Pure, any thread.

#pragma once

#include <string_view>

#include "gossip/messages.hpp"
#include "peer/keys/certificate.hpp"

namespace gossamer::daemon {

/// A node without the right to train may ask for a model and follow it: nodes that train the job give to it and take
/// nothing from it. `gives_only`: a follower's requests change nothing here, because the job is trained here and no
/// server owns it.
[[nodiscard]] bool may_say(const peer::Rights& rights, const Message& message, std::string_view job, bool gives_only);
/// Reduces the JobInfo of a node that may not train to what is believed of it: the node is there and follows.
[[nodiscard]] JobInfo as_follower(JobInfo info);

/// Whether settings of a job that another node tells may replace the present ones, as far as signatures go. With an
/// authority only it and its deputies change settings. Settings that programs give when they found the job need no
/// signature. Nor do settings for a node that `joins`, as long as its present ones are not signed.
[[nodiscard]] bool may_set(const JobSettings& present, const JobSettings& heard,
                           const std::optional<peer::Deciders>& deciders, std::string_view job, bool joins);

}  // namespace gossamer::daemon
