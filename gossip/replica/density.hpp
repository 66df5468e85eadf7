// Decides whether ReplicaOptions::dense_clip applies now. The comment of that option says when and why.
//
// Owned by a replica, on its thread. Time is an argument.

#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "gossip/replica/neighbours.hpp"

namespace gossamer::gossip {

class Density {
 public:
  /// How many other nodes have a certificate. 0: the cluster asks for none, so that all are trusted.
  void set_certified_members(std::size_t members) { certified_members_ = members; }
  /// dense_clip does not apply while the client does not train. Replicas then come so close together that their
  /// distances say nothing, and a tight limit would keep away a replica that comes late. `step_us`: time between two of
  /// the client's steps; 0: not known.
  void look(TimeUs now_us, std::uint64_t clock, TimeUs step_us, const Neighbours& neighbours) {
    if (clock != std::exchange(clock_, clock)) trained_us_ = now_us;
    const bool trains = trained_us_ && now_us - *trained_us_ < std::max(at_rest_us, 4 * step_us);
    dense_ = certified_members_ > 0 && trains && links_most(neighbours.linked());
  }
  [[nodiscard]] bool is_dense() const { return dense_; }

 private:
  static constexpr TimeUs at_rest_us = 10 * us_per_s;  // a client that has not trained for this time is at rest
  static constexpr std::size_t dense_quarters = 3;  // at least so many quarters of the certified members must be linked

  [[nodiscard]] bool links_most(std::size_t linked) const {
    return linked >= witnesses_least && dense_quarters * certified_members_ <= 4 * linked;
  }

  std::size_t certified_members_ = 0;
  std::uint64_t clock_ = 0;
  std::optional<TimeUs> trained_us_;  // when the clock was last seen to move
  bool dense_ = false;
};

}  // namespace gossamer::gossip
