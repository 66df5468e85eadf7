// The one communicator among this node's GPUs, for jobs with clients on several of them. It is made with the first such
// job and not before, since it takes a thread, and memory of every GPU.
//
// Everything is called on the loop's thread, and nothing waits.

#pragma once

#include <spdlog/logger.h>

#include <map>
#include <memory>
#include <string>

#include "daemon/clients/device_memory.hpp"
#include "daemon/device/nccl_collectives.hpp"
#include "daemon/device/node_sums.hpp"

namespace gossamer::daemon {

class GpuSums {
 public:
  explicit GpuSums(spdlog::logger& log) : log_(log) {}

  /// The sums that device::NodeMean uses.
  [[nodiscard]] std::shared_ptr<device::NodeSums> shared();
  /// Counts one more client whose model is on this GPU and takes part in sums.
  void add(const std::shared_ptr<const OpenDevice>& gpu);
  void remove(const std::shared_ptr<const OpenDevice>& gpu);
  /// Logs what has changed.
  void tick();

 private:
  [[nodiscard]] device::Rank rank_of(const OpenDevice& gpu);

  spdlog::logger& log_;
  device::NcclCollectives* collectives_ = nullptr;   // owned by sums_
  std::shared_ptr<device::NodeSums> sums_;           // null until it is needed
  std::map<const OpenDevice*, device::Rank> ranks_;  // as many as the machine has GPUs
  std::size_t summed_ = 0;                           // how many GPUs are summed over, as last logged
  std::string trouble_;                              // as last logged
};

}  // namespace gossamer::daemon
