// What a job asks of its node. Implemented by Node, and by tests. On the loop's thread.

#pragma once

#include <spdlog/logger.h>

#include <map>
#include <string>
#include <vector>

#include "daemon/jobs/checkpoints.hpp"
#include "daemon/jobs/gpu_sums.hpp"
#include "daemon/system/workers.hpp"
#include "gossip/messages.hpp"
#include "gossip/replica/link_load.hpp"

namespace gossamer::daemon {

/// What a job asks of its node.
class JobHost {
 public:
  virtual ~JobHost() = default;
  [[nodiscard]] virtual NodeId id() const = 0;
  [[nodiscard]] virtual TimeUs now_us() const = 0;
  /// Since when the daemon has been there for clients, by the same clock.
  [[nodiscard]] virtual TimeUs began_us() const = 0;
  /// False if it cannot be sent now: no link, or its queue is full.
  virtual bool send(const NodeId& to, const Message& message) = 0;
  /// Nodes linked now.
  [[nodiscard]] virtual std::vector<NodeId> neighbours() const = 0;
  /// To those nodes, as measured; a node to which it is not known yet is left out.
  [[nodiscard]] virtual std::map<NodeId, TimeUs> round_trips_us() const = 0;
  /// What the network takes of one job, as measured; 0: not known.
  [[nodiscard]] virtual double capacity_bytes_s() const = 0;
  [[nodiscard]] virtual gossip::LinkLoad link_load(const NodeId& node) const = 0;
  [[nodiscard]] virtual Workers& workers() = 0;
  [[nodiscard]] virtual spdlog::logger& log() = 0;
  /// Null: none are kept.
  [[nodiscard]] virtual Checkpoints* checkpoints() { return nullptr; }
  /// Null: what is on several GPUs is summed through the host's memory.
  [[nodiscard]] virtual GpuSums* gpu_sums() { return nullptr; }
  /// What people call the node.
  [[nodiscard]] virtual std::string node_name() const { return {}; }
};

}  // namespace gossamer::daemon
