// Learning on a cluster of the shipped replicas (tools/sim/cluster.hpp): every exchange uses the decisions, kernels and
// messages of gossip/, under virtual time.

#pragma once

#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

/// Throws UsageError for an experiment that cannot be run.
[[nodiscard]] LearningRun run_gossip(const Workload& workload, const Experiment& experiment);

}  // namespace gossamer::sim
