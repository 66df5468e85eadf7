// Turns the options of [gossip], with a job's settings in them, into those of its replica. The daemon and the simulator
// call it.
//
// Pure; any thread.

#pragma once

#include "daemon/config/config.hpp"
#include "gossip/replica/replica_options.hpp"

namespace gossamer::daemon {

[[nodiscard]] gossip::ReplicaOptions replica_options(const GossipOptions& options);

}  // namespace gossamer::daemon
