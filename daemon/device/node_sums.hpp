// Sums over arrays on several GPUs of this node, for whoever works on a fragment: drives daemon/device/reducer.hpp on a
// thread of its own.
//
// A worker that has a part of a sum on each of some GPUs asks for it and waits. It waits for a bounded time: `turn_us`
// until it is its turn, and then a little longer than a reduction may take. The communicator's own calls are made by
// the thread alone, because NCCL's may wait although they promise not to (an initialisation that starts threads, an
// abort that joins them): then the thread stands still, and workers learn within `turn_us` that there is no sum.
//
// One sum is computed at a time, of all jobs of the node: there is one communicator, in which every GPU takes part that
// has a replica. Those without a part in a sum add zeros.
//
// Memory of a sum belongs to it while it is under way: of one that failed or was given up it is released by the thread,
// after the communicator that may still write there, and not given back.
//
// Any thread. If the thread stands still when this ends, it is left there, with all that it may touch: the collectives,
// which it alone uses, and the GPUs.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/device/reducer.hpp"
#include "gossip/exchange/device.hpp"

namespace gossamer::device {

struct SumLimits {
  ReducerLimits reducer;
  TimeUs turn_us = 20 * us_per_ms;  ///< longest that a sum waits for those before it
  TimeUs grace_us = 1 * us_per_s;   ///< after reducer.reduce_us: then the thread itself stands still
  TimeUs stop_us = 2 * us_per_s;    ///< how long the end waits for the thread
};

class NodeSums {
 public:
  /// Sums that wait for their turn; more are refused.
  static constexpr std::size_t max_waiting = 1024;

  explicit NodeSums(std::unique_ptr<Collectives> collectives, SumLimits limits = {});
  ~NodeSums();
  NodeSums(const NodeSums&) = delete;
  NodeSums& operator=(const NodeSums&) = delete;

  /// One more user of this GPU, by the rank that the collectives know it as. False if there are too many GPUs.
  bool add(Rank rank, std::shared_ptr<const gossip::Device> device);
  void remove(Rank rank);

  /// An array in the memory of its device.
  struct Part {
    const gossip::Device* device = nullptr;
    gossip::Device::Floats values;
    std::size_t capacity = 0;  ///< elements that there is room for
  };
  enum class Result {
    done,       ///< all parts hold the sum, the same bits
    failed,     ///< the parts are gone
    not_ready,  ///< the parts are as they were: there is no communicator of all these GPUs now, or no turn
  };
  /// Waits. Each device has one part at most.
  [[nodiscard]] Result add_up(std::vector<Part>& parts, std::size_t elements);

  // --- for people
  struct Status {
    std::vector<Rank> ranks;  ///< that are summed over; empty: there is no communicator
    LocalReducer::Counters counters;
    std::string trouble;  ///< what went wrong last
  };
  [[nodiscard]] Status status() const;

 private:
  class Thread;
  std::shared_ptr<Thread> thread_;  // with the thread itself, which may outlive this
};

}  // namespace gossamer::device
