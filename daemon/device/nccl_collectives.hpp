// NCCL as the communicators of daemon/device/reducer.hpp, through the plug-in. All ranks are in this process, the
// daemon, over buffers that its clients have exported.
//
// One thread makes communicators; any thread may add a rank with know(). The devices must outlive this object.

#pragma once

#include <map>
#include <mutex>

#include "daemon/device/cuda_device.hpp"
#include "daemon/device/reducer.hpp"

namespace gossamer::device {

class NcclCollectives final : public Collectives {
 public:
  /// A rank must be known before it is asked for. All ranks use one plug-in.
  void know(Rank rank, const CudaDevice& device);
  [[nodiscard]] std::unique_ptr<Collective> make(std::span<const Rank> ranks) override;

 private:
  std::mutex mutex_;
  std::map<Rank, const CudaDevice*> devices_;  // under mutex_
};

}  // namespace gossamer::device
