// What a job's replica is to do, by the options of the node and the settings of the job. The simulator asks the same.
//
// Pure; any thread.

#pragma once

#include "daemon/config/config.hpp"
#include "gossip/replica/replica_options.hpp"

namespace gossamer::daemon {

[[nodiscard]] gossip::ReplicaOptions replica_options(const GossipOptions& options);

}  // namespace gossamer::daemon
