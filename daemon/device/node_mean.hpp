// The mean among one job's clients that are on several GPUs of the node. One GPU is the job's *home*: its first
// client's, which holds the node's copy y of every fragment. The other clients are *elsewhere*:
//
//   1. On each GPU one kernel adds up the contributions of its own clients: at home into y, elsewhere into scratch
//      memory, which begins with zeros.
//   2. One sum over those arrays gives all GPUs the new y, with the same bits (daemon/device/node_sums.hpp). It is
//      gather and broadcast at once. Home takes it as y.
//   3. On each GPU one kernel writes the values that its own clients are to add.
//
// Without a communicator (NCCL is not installed, or one is just being made) the sum goes through the host's memory: two
// copies over the bus for each GPU. If the sum or a GPU elsewhere fails, the part of the clients at home is
// done and stays. From the clients elsewhere, or those on that GPU, nothing has been taken, and nothing was written for
// them. Their outcomes say so (LocalMeanOutcome::reached), and their training is averaged later, exactly once.
//
// A sum that is not finite counts as failed: each partial sum is within bounds, but nothing limits them together if a
// client changes its arrays while they are read.
//
// Any thread. include() must be called before the first task that names that GPU.

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "daemon/device/node_sums.hpp"
#include "gossip/exchange/device.hpp"
#include "gossip/group/group.hpp"

namespace gossamer::device {

class NodeMean : public gossip::MeanOver {
 public:
  using Device = gossip::Device;

  /// Each GPU keeps at most this many scratch arrays between tasks.
  static constexpr std::size_t max_kept = 8;

  /// If `sums` is null, every sum goes through the host's memory.
  explicit NodeMean(std::shared_ptr<const Device> home, std::shared_ptr<NodeSums> sums = nullptr);
  NodeMean(const NodeMean&) = delete;
  NodeMean& operator=(const NodeMean&) = delete;

  /// Tasks may name this GPU from now on, and it stays open.
  void include(std::shared_ptr<const Device> device);

  /// Does what gossip::LocalMeanTask::run() does, with clients on several devices. y is on the home GPU.
  [[nodiscard]] std::vector<gossip::LocalMeanOutcome> run(const gossip::LocalMeanTask& task,
                                                          std::span<float> y) const override;

  struct Counters {
    std::uint64_t summed = 0;        ///< tasks over several GPUs that were summed
    std::uint64_t through_host = 0;  ///< tasks of these that were summed without a communicator
    std::uint64_t failed = 0;        ///< tasks in which some client could not be reached
  };
  [[nodiscard]] Counters counters() const;

 private:
  struct Task;
  /// The places in a task's list of clients that are on one device.
  using Places = std::vector<std::size_t>;
  using Parts = std::vector<NodeSums::Part>;

  [[nodiscard]] bool take(const Task& task, const Device& device, const Places& places, std::span<float> y) const;
  void write(const Task& task, const Device& device, const Places& places, float* y) const;
  [[nodiscard]] Parts take_elsewhere(const Task& task) const;
  [[nodiscard]] bool add_up(Parts& parts, std::span<float> y) const;
  static void through_host(Parts& parts, std::size_t elements);

  // --- scratch memory
  /// Has no values if there is no room.
  [[nodiscard]] NodeSums::Part scratch_on(const Device& device, std::size_t elements) const;
  void keep(Parts&& parts) const;

  const std::shared_ptr<const Device> home_;
  const std::shared_ptr<NodeSums> sums_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const Device>> included_;  // under mutex_
  mutable std::map<const Device*, Parts> kept_;          // under mutex_
  mutable std::size_t kept_capacity_ = 0;                // capacity of each array; under mutex_
  mutable Counters counters_;                            // under mutex_
};

}  // namespace gossamer::device
