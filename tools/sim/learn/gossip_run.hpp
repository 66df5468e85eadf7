// Learning on a cluster of the shipped replicas (tools/sim/cluster.hpp): every exchange uses the decisions, kernels and
// messages of gossip/, under virtual time.

#pragma once

#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

class Cluster;

/// Fills in what the cluster's replicas have counted, as sums over them, and the share of wide blocks.
void add_counters(const Cluster& cluster, LearningRun& run);
/// Throws UsageError for an experiment that cannot be run.
[[nodiscard]] LearningRun run_gossip(const Workload& workload, const Experiment& experiment);

}  // namespace gossamer::sim
