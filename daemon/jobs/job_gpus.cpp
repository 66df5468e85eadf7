#include "daemon/jobs/job_gpus.hpp"

namespace gossamer::daemon {

void JobGpus::include(const ClientMemory& memory) {
  if (!is_elsewhere(memory)) return;
  const auto as_device = [](const std::shared_ptr<const OpenDevice>& gpu) {
    return std::shared_ptr<const gossip::Device>(gpu, gpu->cuda.get());
  };
  const std::shared_ptr<const OpenDevice> gpu = memory.opened();
  if (!mean_)
    mean_ = std::make_shared<device::NodeMean>(as_device(opened_), sums_ != nullptr ? sums_->shared() : nullptr);
  mean_->include(as_device(gpu));
  if (sums_ == nullptr) return;
  sums_->add(opened_);
  sums_->add(gpu);
}

void JobGpus::leave(const ClientMemory& memory) {
  if (sums_ == nullptr || !is_elsewhere(memory)) return;
  sums_->remove(opened_);
  sums_->remove(memory.opened());
}

}  // namespace gossamer::daemon
