// The node as its jobs see it. Implemented by Node and by tests. Everything is called on the loop's thread.

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

class JobHost {
 public:
  virtual ~JobHost() = default;
  [[nodiscard]] virtual NodeId id() const = 0;
  [[nodiscard]] virtual TimeUs now_us() const = 0;
  /// When this daemon began to accept clients, on the same clock.
  [[nodiscard]] virtual TimeUs began_us() const = 0;
  /// False if the message cannot be sent now: there is no link, or its queue is full.
  virtual bool send(const NodeId& to, const Message& message) = 0;
  /// The nodes that are linked now.
  [[nodiscard]] virtual std::vector<NodeId> neighbours() const = 0;
  /// The measured round trips to those nodes; a node that has not been measured is left out.
  [[nodiscard]] virtual std::map<NodeId, TimeUs> round_trips_us() const = 0;
  /// The measured rate at which the network takes one job's bytes; 0: not known.
  [[nodiscard]] virtual double capacity_bytes_s() const = 0;
  [[nodiscard]] virtual gossip::LinkLoad link_load(const NodeId& node) const = 0;
  /// How many other nodes have a certificate; 0: the cluster asks for none.
  [[nodiscard]] virtual std::size_t certified_members() const { return 0; }
  [[nodiscard]] virtual Sponsor sponsor_of(const NodeId& /*node*/) const { return no_sponsor; }
  [[nodiscard]] virtual Workers& workers() = 0;
  [[nodiscard]] virtual spdlog::logger& log() = 0;
  /// The job follows these settings from now on.
  virtual void settings_followed(const std::string& /*job*/, const JobSettings& /*settings*/) {}
  /// Null if the node keeps no checkpoints.
  [[nodiscard]] virtual Checkpoints* checkpoints() { return nullptr; }
  /// Null: models on several GPUs are summed through the host's memory.
  [[nodiscard]] virtual GpuSums* gpu_sums() { return nullptr; }
  /// The names of the jobs that other nodes run, as far as they are known.
  [[nodiscard]] virtual std::vector<std::string> jobs_elsewhere() const { return {}; }
  /// The node's name for people.
  [[nodiscard]] virtual std::string node_name() const { return {}; }
  /// The words for another node in the log and in messages: its id and, if it is linked, its name.
  [[nodiscard]] virtual std::string called(const NodeId& node) const { return node.brief(); }
};

}  // namespace gossamer::daemon
