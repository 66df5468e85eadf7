// NCCL as the communicators of daemon/device/reducer.hpp, through the plug-in. All ranks are this process's: the
// daemon's, over buffers that its clients have exported.
//
// One owner, one thread. The devices live longer than it.

#pragma once

#include <map>

#include "daemon/device/cuda_device.hpp"
#include "daemon/device/reducer.hpp"

namespace gossamer::device {

class NcclCollectives final : public Collectives {
 public:
  explicit NcclCollectives(const Plugin& plugin) : plugin_(plugin) {}
  /// Ranks are to be known before they are asked for.
  void know(Rank rank, const CudaDevice& device) { devices_[rank] = &device; }
  [[nodiscard]] std::unique_ptr<Collective> make(std::span<const Rank> ranks) override;

 private:
  Plugin plugin_;
  std::map<Rank, const CudaDevice*> devices_;
};

}  // namespace gossamer::device
