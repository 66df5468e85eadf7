// The end of a run at this node: what its programs have asked for, how far the end agreement is, and who saves.
//
// Several clients finish as one. When all have stopped training and hold the node's copy, the replica finishes
// (gossip/replica/finishing.hpp). The others do not wait for a quarantined client that has been told so, for a client
// for which the run is over, or for a client that only keeps the job. The daemon and the simulator use this class. One
// owner, the replica's thread.

#pragma once

#include <optional>
#include <set>

#include "gossip/group/group.hpp"

namespace gossamer::gossip {

class Ending {
 public:
  Ending(Replica& replica, Executor& executor, const Group& group)
      : replica_(replica), executor_(executor), group_(group) {}

  /// Reads what a client has asked for. Its clock is to be read after that: a program trains, and then finishes.
  void look(Member& client);
  /// Answers the clients.
  void watch(const Group::Members& clients, TimeUs now_us);
  /// The longest time between rounds of the group. `period_us`: while clients train.
  [[nodiscard]] TimeUs round_period_us(TimeUs period_us) const;
  /// What the node's copy is to be made from. At the end of a run it is the mean: that makes all clients equal, even
  /// those that should be equal already.
  [[nodiscard]] Follows follows() const {
    return replica_.takes() || training_ != Training::go_on ? Follows::mean : Follows::one;
  }

 private:
  /// How far the clients are.
  enum class Training : std::uint8_t {
    go_on,     ///< some client trains
    stopped,   ///< none trains, but their models are not all equal yet
    finishing  ///< their models are equal, and the replica has been told
  };

  void answer(Member& client, FinishReport report, bool over, bool is_first);
  [[nodiscard]] Programs programs(const Group::Members& clients) const;
  [[nodiscard]] bool is_left_out(const Member& client) const;
  [[nodiscard]] std::set<std::uint64_t> left_out(const Group::Members& clients) const;
  [[nodiscard]] bool is_even(const Group::Members& clients) const;
  [[nodiscard]] std::uint64_t first_sound(const Group::Members& clients) const;
  void set_finishing(Programs programs, TimeUs now_us);

  Replica& replica_;
  Executor& executor_;
  const Group& group_;
  Training training_ = Training::go_on;
  Programs told_ = Programs::train;  // to the replica
  bool again_ = false;               // since the last answers, a client has asked to finish anew, or trains again
  TimeUs seen_us_ = 0;
  std::optional<std::uint64_t> saver_;  // the client that saves, once all is over
};

}  // namespace gossamer::gossip
