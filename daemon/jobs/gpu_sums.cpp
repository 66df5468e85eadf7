#include "daemon/jobs/gpu_sums.hpp"

#include <utility>

namespace gossamer::daemon {

std::shared_ptr<device::NodeSums> GpuSums::shared() {
  if (!sums_) {
    auto collectives = std::make_unique<device::NcclCollectives>();
    collectives_ = collectives.get();
    sums_ = std::make_shared<device::NodeSums>(std::move(collectives));
  }
  return sums_;
}

device::Rank GpuSums::rank_of(const OpenDevice& gpu) {
  const auto [found, is_new] = ranks_.try_emplace(&gpu, static_cast<device::Rank>(ranks_.size()));
  if (is_new) collectives_->know(found->second, *gpu.cuda);
  return found->second;
}

void GpuSums::add(const std::shared_ptr<const OpenDevice>& gpu) {
  const auto sums = shared();
  // A GPU beyond the communicator's limit gets no rank: its jobs are summed through the host's memory.
  (void)sums->add(rank_of(*gpu), {gpu, gpu->cuda.get()});
}

void GpuSums::remove(const std::shared_ptr<const OpenDevice>& gpu) {
  shared()->remove(rank_of(*gpu));
}

void GpuSums::tick() {
  if (!sums_) return;
  device::NodeSums::Status status = sums_->status();
  if (status.trouble != trouble_) {
    log_.warn("sums among this node's GPUs: {}; meanwhile they go through the host's memory", status.trouble);
    trouble_ = std::move(status.trouble);
  }
  if (status.ranks.size() == summed_) return;
  summed_ = status.ranks.size();
  if (summed_ > 0) log_.info("{} GPUs of this node are summed over with NCCL", summed_);
}

}  // namespace gossamer::daemon
