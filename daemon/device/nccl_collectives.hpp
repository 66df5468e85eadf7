// NCCL as the communicators of daemon/device/reducer.hpp, through the plug-in. All ranks are this process's: the
// daemon's, over buffers that its clients have exported.
//
// One thread makes communicators; any may say what is known. The devices live longer than it.

#pragma once

#include <map>
#include <mutex>

#include "daemon/device/cuda_device.hpp"
#include "daemon/device/reducer.hpp"

namespace gossamer::device {

class NcclCollectives final : public Collectives {
 public:
  /// Ranks are to be known before they are asked for. All of one plug-in.
  void know(Rank rank, const CudaDevice& device);
  [[nodiscard]] std::unique_ptr<Collective> make(std::span<const Rank> ranks) override;

 private:
  std::mutex mutex_;
  std::map<Rank, const CudaDevice*> devices_;  // under mutex_
};

}  // namespace gossamer::device
