// Sums over arrays on several GPUs of this node, for the workers. NodeSums drives daemon/device/reducer.hpp on a thread
// of its own.
//
// A worker that has one part of a sum on each of several GPUs asks for the sum and waits for a bounded time: `turn_us`
// until it is its turn, and then a little longer than a reduction may take. Only the thread calls the communicator,
// because NCCL's calls may wait although they promise not to (an initialisation that starts threads, an abort that
// joins them). The thread then stands still, and workers learn within `turn_us` that there is no sum.
//
// One sum is computed at a time, over all jobs of the node. There is one communicator, and every GPU that has a replica
// takes part in it. GPUs without a part in a sum add zeros.
//
// The memory of a sum belongs to the sum while it is under way. If the sum failed or was given up, its memory is not
// given back: the thread releases the memory after the communicator, which may still write to it.
//
// Any thread. If the thread stands still when this object ends, the thread is left behind with all that it may touch:
// the collectives, which only it uses, and the GPUs.

#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/device/reducer.hpp"
#include "gossip/exchange/device.hpp"

namespace gossamer::device {

struct SumLimits {
  ReducerLimits reducer;
  TimeUs turn_us = 20 * us_per_ms;  ///< a sum waits at most this long for those before it
  TimeUs grace_us = 1 * us_per_s;   ///< after reducer.reduce_us and this time more, the thread counts as standing still
  TimeUs stop_us = 2 * us_per_s;    ///< the end waits at most this long for the thread
};

class NodeSums {
 public:
  /// At most this many sums wait for their turn; more are refused.
  static constexpr std::size_t max_waiting = 1024;

  explicit NodeSums(std::unique_ptr<Collectives> collectives, SumLimits limits = {});
  ~NodeSums();
  NodeSums(const NodeSums&) = delete;
  NodeSums& operator=(const NodeSums&) = delete;

  /// Adds a user of this GPU, by the rank that the collectives know it as. False if there are too many GPUs.
  bool add(Rank rank, std::shared_ptr<const gossip::Device> device);
  void remove(Rank rank);

  /// An array in the memory of its device.
  struct Part {
    const gossip::Device* device = nullptr;
    gossip::Device::Floats values;
    std::size_t capacity = 0;  ///< the array has room for this many elements
  };
  enum class Result {
    done,       ///< all parts hold the sum, with the same bits
    failed,     ///< the parts are gone
    not_ready,  ///< the parts are unchanged: no communicator of all these GPUs, or no turn in time
  };
  /// Waits for the sum. Each device has one part at most.
  [[nodiscard]] Result add_up(std::vector<Part>& parts, std::size_t elements);

  // --- for people
  struct Status {
    std::vector<Rank> ranks;  ///< ranks that are summed over; empty: there is no communicator
    LocalReducer::Counters counters;
    std::string trouble;  ///< the latest error
  };
  [[nodiscard]] Status status() const;

 private:
  class Thread;
  std::shared_ptr<Thread> thread_;  // shared with the thread itself, which may outlive this object
  std::thread runs_;
};

}  // namespace gossamer::device
