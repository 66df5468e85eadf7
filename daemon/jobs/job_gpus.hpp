// The devices of one job at this node. *Home* is the device of the job's first client; its memory holds the replica.
// Clients on other GPUs are *elsewhere*, and take part through a mean over several GPUs (daemon/device/node_mean.hpp).
//
// Owned by Job, on the loop's thread.

#pragma once

#include <memory>
#include <optional>

#include "daemon/clients/client_memory.hpp"
#include "daemon/device/node_mean.hpp"
#include "daemon/jobs/gpu_sums.hpp"

namespace gossamer::daemon {

class JobGpus {
 public:
  /// `sums` outlives this object. If it is null, sums over several GPUs go through the host's memory.
  JobGpus(const ClientMemory& first, GpuSums* sums) : home_(first.device()), opened_(first.opened()), sums_(sums) {}

  [[nodiscard]] const gossip::Device& home() const { return home_; }
  /// True if home() is a GPU, and not the processor.
  [[nodiscard]] bool home_is_gpu() const { return opened_ != nullptr; }
  /// True for a client on another GPU than home().
  [[nodiscard]] bool is_elsewhere(const ClientMemory& memory) const { return !memory.reached_by(home_); }
  /// Call these when a client with this memory has come, or has gone. Nothing changes if the client is at home.
  void include(const ClientMemory& memory);
  void leave(const ClientMemory& memory);
  /// Null: no client on another GPU than home() has come.
  [[nodiscard]] const std::shared_ptr<device::NodeMean>& mean() const { return mean_; }

 private:
  const gossip::Device& home_;
  std::shared_ptr<const OpenDevice> opened_;  // keeps the GPU of home() open; null: home() is the processor
  GpuSums* sums_;
  std::shared_ptr<device::NodeMean> mean_;  // made once a client is elsewhere
};

}  // namespace gossamer::daemon
