// How the replicas of a run that ends come to agree, and know it.
//
// A program that has stopped training asks its node to finish. The node then exchanges as fast as its links allow,
// first of all with those that finish, too. Averaging pairs makes all replicas equal in the limit; nobody sees all of
// them, so each fragment remembers whom it was found to agree with since it last differed from anyone: with
// finish_witnesses others, or all if there are fewer, it is *settled*. A replica of which all fragments are settled
// says so; when everyone in its reach has said so, the run is over for it. Those that still train are waited for.
//
// A replica with NaN or infinity takes no part: it says that it is quarantined, is neither waited for nor counted, and
// is never the one to save. It can learn of nothing that would mend it, so its own program is told at once.
//
// Replica owns one EndAgreement for a fragment, on the loop's thread.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

/// Two replicas agree on a fragment if ‖y_j − y_i‖ is less than this share of ‖y‖: far below what training moves in a
/// step, and above what each codec reaches (measured in docs/explanation/measurements.md).
inline constexpr double finish_tolerance = 1e-4;
/// Others that a fragment must agree with.
inline constexpr std::size_t finish_witnesses = 3;
/// Between two exchanges of a fragment that is not settled: at most.
inline constexpr TimeUs finish_wait_us = 5 * us_per_ms;
/// One that has been without partners for less than this may get them back, and is not over yet.
inline constexpr TimeUs finish_alone_us = 2 * us_per_s;

/// Members of a finish that a program is told of, at most.
inline constexpr std::size_t max_members_told = 65'535;

class EndAgreement {
 public:
  /// An exchange found this distance; `finishes`: the partner has stopped training, so that it will stay where it is.
  void observe(const NodeId& partner, double relative_distance, bool finishes) {
    last_distance_ = relative_distance;
    if (!(relative_distance < finish_tolerance)) {
      with_.clear();
    } else if (finishes && !has(partner) && with_.size() < finish_witnesses) {
      with_.push_back(partner);
    }
  }
  /// The values have changed otherwise: nothing is known any more.
  void forget() { with_.clear(); }
  [[nodiscard]] bool has(const NodeId& partner) const {
    return std::find(with_.begin(), with_.end(), partner) != with_.end();
  }
  /// `finishing`: others in reach that finish.
  [[nodiscard]] bool settled(std::size_t finishing) const {
    return with_.size() >= std::min(finish_witnesses, finishing);
  }
  /// As the last exchange found it; 0 before any.
  [[nodiscard]] double distance() const { return last_distance_; }

 private:
  std::vector<NodeId> with_;  // at most finish_witnesses
  double last_distance_ = 0;
};

/// What a program is told of its finish.
struct FinishReport {
  bool over = false;        ///< everyone in reach agrees
  double distance = 0;      ///< the largest of the fragments' last relative distances
  std::size_t members = 1;  ///< that finish, this one included
  bool saver = true;        ///< this one's id is the smallest of them
  /// What the program left holds NaN or infinity: it is not over, this one does not save, and the distance is infinite.
  bool spoiled = false;
};

/// Of a replica, or of one client of a node, that holds NaN or infinity.
[[nodiscard]] inline FinishReport spoiled_report(std::size_t members) {
  return {.over = false,
          .distance = std::numeric_limits<double>::infinity(),
          .members = members,
          .saver = false,
          .spoiled = true};
}

}  // namespace gossamer::gossip
