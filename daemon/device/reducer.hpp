// Sums among the GPUs of one node: which GPUs take part, and what happens when one joins, dies or hangs.
//
// A *communicator* is a fixed set of ranks (one GPU each; replicas that share a GPU are averaged there first). A change
// of ranks needs a new one, which takes seconds. LocalReducer has it made beside the present one:
//
//   - A GPU joins: the present communicator goes on with its ranks until the new one is ready.
//   - A GPU goes: the present communicator is useless without it, and is abandoned at once. Until the new one
//     is ready there are no sums. Each replica goes on by itself, nobody waits, and its training is averaged later.
//   - A GPU hangs, or an error occurs: everything has a time limit, after which the communicator is abandoned. Then a
//     new one is made after a pause. The pause doubles until a sum is done, so a GPU that hangs again and again delays
//     nobody for long.
//
// A reduction that fails has written nothing that counts: its buffers are scratch memory, which is then not used.
//
// The decisions are here. Communicators are behind Collectives: NCCL (daemon/device/nccl_collectives.hpp), or the
// host's memory in tests. One owner, one thread; time comes in as an argument, and no call waits.

#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::device {

/// A GPU of this node, by the driver's number.
using Rank = int;

/// A communicator over a fixed set of ranks. Its destructor ends it, whatever it is doing.
class Collective {
 public:
  enum class State { under_way, done, failed };

  Collective() = default;
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  /// The state of the last operation, either making the communicator or a reduction. Never waits.
  [[nodiscard]] virtual State progress() = 0;
  /// Begins a sum: values[r], with `elements` elements in the memory of rank r, becomes the sum over all ranks. Call
  /// this only when nothing is under way.
  [[nodiscard]] virtual State reduce(std::span<float* const> values, std::size_t elements) = 0;
  /// Why the last operation failed.
  [[nodiscard]] virtual std::string why() const = 0;
};

class Collectives {
 public:
  Collectives() = default;
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// Begins to make a communicator of these ranks, which ascend. Never returns null, and never waits.
  [[nodiscard]] virtual std::unique_ptr<Collective> make(std::span<const Rank> ranks) = 0;
};

struct ReducerLimits {
  TimeUs make_us = 20 * us_per_s;   ///< making a communicator takes at most this long
  TimeUs reduce_us = 5 * us_per_s;  ///< a reduction takes at most this long
  TimeUs pause_us = 1 * us_per_s;   ///< pause after a failure before the next one is made; doubles until a sum is done
  TimeUs longest_pause_us = 60 * us_per_s;
};

class LocalReducer {
 public:
  static constexpr std::size_t max_ranks = 64;

  explicit LocalReducer(Collectives& collectives, ReducerLimits limits = {})
      : collectives_(collectives), limits_(limits) {}

  /// The GPU has a replica now. False if there are too many GPUs.
  bool add(Rank rank);
  /// The last replica of the GPU is gone, or the GPU itself.
  void remove(Rank rank);

  /// The ranks that can be summed over now, ascending; empty if there are none.
  [[nodiscard]] std::span<const Rank> ready() const;
  /// Begins a sum over ready(), with the values in the order of ready(). Call this only if ready() is not empty.
  void reduce(std::span<float* const> values, std::size_t elements, TimeUs now_us);
  [[nodiscard]] bool reducing() const { return reduce_until_us_.has_value(); }
  /// Nothing is under way or to be made, so tick() has nothing to do until the next request.
  [[nodiscard]] bool settled() const;
  /// In the pause after a failure, tick() has nothing to do before this time. 0: no such pause.
  [[nodiscard]] TimeUs rests_until_us() const { return next_ || reducing() || broken_off_ ? 0 : not_before_us_; }

  enum class Reduced { no, done, failed };
  /// Moves everything on, and returns what has become of a reduction. Call it at least every few milliseconds, except
  /// in the two cases above.
  [[nodiscard]] Reduced tick(TimeUs now_us);

  // --- for people
  struct Counters {
    std::uint64_t made = 0;
    std::uint64_t make_failures = 0;
    std::uint64_t reductions = 0;
    std::uint64_t reduce_failures = 0;
  };
  [[nodiscard]] const Counters& counters() const { return counters_; }
  /// The latest error; empty: none yet.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }

 private:
  struct Group {
    std::vector<Rank> ranks;
    std::unique_ptr<Collective> collective;
  };
  [[nodiscard]] Reduced watch_reduction(TimeUs now_us);
  void watch_making(TimeUs now_us);
  void make_if_needed(TimeUs now_us);
  void make_failed(std::string why, TimeUs now_us);
  /// Begins a pause that is longer than the last one.
  void pause(TimeUs now_us);
  [[nodiscard]] bool all_present() const;
  void end_reduction() { reduce_until_us_.reset(); }

  Collectives& collectives_;
  ReducerLimits limits_;
  std::set<Rank> wanted_;
  std::optional<Group> present_;
  std::optional<Group> next_;
  TimeUs make_until_us_ = 0;
  std::optional<TimeUs> reduce_until_us_;
  bool broken_off_ = false;  // a reduction was broken off, and tick() has not reported it yet
  TimeUs pause_us_ = 0;      // the pause after the last failure; 0: there was none since a sum was done
  TimeUs not_before_us_ = 0;
  Counters counters_;
  std::string trouble_;
};

}  // namespace gossamer::device
