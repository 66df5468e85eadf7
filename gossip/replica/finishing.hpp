// How the replicas of a run that ends reach one model, and know that they have.
//
// A program that has stopped training asks its node to finish. The node then exchanges as fast as its links allow,
// first with nodes that finish as well. Averaging pairs makes all replicas equal in the limit, but no node sees all of
// them. So each fragment remembers with which nodes it has agreed since it last differed from any. A fragment that has
// agreed with finish_witnesses nodes, or with all if there are fewer, is *settled*. A replica whose fragments are all
// settled says so. When everyone in its reach has said so, the run is over for it. Nodes that still train are waited
// for.
//
// A node for which the run was over before another begins to finish has finished an earlier run. Its program may never
// look again, so the node is neither a witness nor a member. It is waited for only a little, since its program may
// train again at once and finish once more.
//
// With the method `server` the others push to a fragment's server what they have left, and then take the server's value
// over. A fragment is settled at another node when it agrees with its server. It is settled at the server when all
// nodes for which the run is not over agree with the server. The server asks nodes that have settled but no longer
// agree with it. Where nobody keeps the job, all nodes exchange as above.
//
// A replica with NaN or infinity takes no part. It says that it is quarantined, is neither waited for nor counted, and
// is never the one to save. Gossip cannot mend it, so its own program is told at once.
//
// Each fragment has one EndAgreement, which Replica owns on the loop's thread.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

/// Two replicas agree on a fragment if ‖y_j − y_i‖ is less than this share of ‖y‖. The share is far below what one
/// training step moves, and above what each codec reaches (measured in docs/explanation/measurements.md).
inline constexpr double finish_tolerance = 1e-4;
/// Number of other nodes that a fragment must agree with.
inline constexpr std::size_t finish_witnesses = 3;
/// Longest wait between two exchanges of a fragment that is not settled.
inline constexpr TimeUs finish_wait_us = 5 * us_per_ms;
/// A replica that has had no partners for less than this is not over yet: they may come back.
inline constexpr TimeUs finish_alone_us = 2 * us_per_s;

/// The programs of a node either train or finish.
enum class Programs : std::uint8_t {
  train,
  finish,
  finish_spoiled,  ///< they finish, and each holds NaN or infinity, though the node's copy does not
  have_finished    ///< they were told that the run is over: nothing is asked of them any more
};

/// Largest number of members of a finish that a program is told of.
inline constexpr std::size_t max_members_told = 65'535;

class EndAgreement {
 public:
  /// An exchange found this distance. `finishes`: the partner has stopped training, so that its values stay.
  void observe(const NodeId& partner, double relative_distance, bool finishes) {
    last_distance_ = relative_distance;
    if (!(relative_distance < finish_tolerance)) {
      with_.clear();
      return;
    }
    agreed_distance_ = relative_distance;
    if (finishes && !has(partner)) with_.push_back(partner);
  }
  /// The values have changed by other means than an exchange, so earlier agreement no longer counts.
  void forget() { with_.clear(); }
  [[nodiscard]] bool has(const NodeId& partner) const {
    return std::find(with_.begin(), with_.end(), partner) != with_.end();
  }
  /// `finishing`: number of other nodes in reach that finish.
  [[nodiscard]] bool settled(std::size_t finishing) const {
    return with_.size() >= std::min(finish_witnesses, finishing);
  }
  /// The distance found by the last exchange; 0 before any.
  [[nodiscard]] double distance() const { return last_distance_; }
  /// The last distance that was small enough; 0 before any.
  [[nodiscard]] double agreed_distance() const { return agreed_distance_; }

 private:
  std::vector<NodeId> with_;  // neighbours only, each once
  double last_distance_ = 0;
  double agreed_distance_ = 0;
};

/// The report to a program about its finish.
struct FinishReport {
  bool begun = false;       ///< the programs here have stopped training
  bool over = false;        ///< everyone in reach agrees
  double distance = 0;      ///< largest relative distance that fragments last found; once over, when they last agreed
  std::size_t members = 1;  ///< replicas that finish, this one included
  std::uint64_t clock = 0;  ///< how far the job is, in samples
  bool saver = true;        ///< this node has the smallest id of the members
  /// The program's model holds NaN or infinity: it is not over, this node does not save, and the distance is infinite.
  bool spoiled = false;
};

/// The report of a replica, or of one client of a node, that holds NaN or infinity.
[[nodiscard]] inline FinishReport spoiled_report(std::size_t members, std::uint64_t clock) {
  return {.over = false,
          .distance = std::numeric_limits<double>::infinity(),
          .members = members,
          .clock = clock,
          .saver = false,
          .spoiled = true};
}

}  // namespace gossamer::gossip
