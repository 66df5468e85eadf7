#include "daemon/device/nccl_collectives.hpp"

namespace gossamer::device {
namespace {

class NcclCollective final : public Collective {
 public:
  NcclCollective(const PluginTable& table, std::vector<Context*> contexts) : table_(table) {
    (void)noted(table_.join(contexts.data(), static_cast<std::uint32_t>(contexts.size()), &communicator_, error_.data(),
                            error_.size()));
  }
  ~NcclCollective() override { table_.abandon(communicator_); }

  State progress() override {
    if (failed_) return State::failed;
    return noted(table_.progress(communicator_, error_.data(), error_.size()));
  }
  State reduce(std::span<float* const> values, std::size_t elements) override {
    if (failed_) return State::failed;
    return noted(table_.all_reduce(communicator_, values.data(), elements, error_.data(), error_.size()));
  }
  std::string why() const override { return error_.data(); }

 private:
  State noted(Status status) {
    if (status == Status::done) return State::done;
    if (status == Status::under_way) return State::under_way;
    failed_ = true;
    return State::failed;
  }

  const PluginTable& table_;
  Communicator* communicator_ = nullptr;
  std::array<char, 512> error_{};
  bool failed_ = false;
};

}  // namespace

void NcclCollectives::know(Rank rank, const CudaDevice& device) {
  const std::scoped_lock lock(mutex_);
  devices_[rank] = &device;
}

std::unique_ptr<Collective> NcclCollectives::make(std::span<const Rank> ranks) {
  std::vector<Context*> contexts;
  const PluginTable* table = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    for (const Rank rank : ranks)
      contexts.push_back(&devices_.at(rank)->context());
    table = &devices_.at(ranks.front())->plugin();
  }
  return std::make_unique<NcclCollective>(*table, std::move(contexts));
}

}  // namespace gossamer::device
