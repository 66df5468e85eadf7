// The remaining handover of one fragment by a replica that leaves, so that its training is not lost.
//
// An exchange with weight 2^-shift moves that share of the leaver's difference to its partner. With n replicas, the
// leaver's share in their mean is 1/n. Once the leaver alone has no more than 1/n of its difference left, the mean of
// the replicas that stay is the former mean of all. If those mix in the meantime, this is only nearly exact: a later
// partner then has a part of the difference already. So it is where replicas weigh by their samples. A handover takes
// log2(n) exchanges of weight ½, each with a new partner. A second exchange with the same partner is worth it only
// after a smaller weight; otherwise it finds nothing to move.
//
// This is pure book-keeping, owned by gossip/replica/replica.hpp.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

class Handover {
 public:
  /// Most exchanges for one fragment. Beyond 2^max_exchanges replicas a little more of the leaver's training is lost.
  static constexpr std::size_t max_exchanges = 10;

  /// An exchange was concluded: this end moved by 2^-shift of the difference.
  void exchanged(const NodeId& partner, int shift) {
    kept_ *= 1 - std::ldexp(1.0, -shift);
    ++exchanges_;
    if (shift <= 1) asked_.push_back(partner);
  }
  [[nodiscard]] bool may_ask(const NodeId& partner) const {
    return std::find(asked_.begin(), asked_.end(), partner) == asked_.end();
  }
  /// True if the handover of the fragment has ended. `replicas`: how many there are, the leaver included.
  [[nodiscard]] bool over(std::size_t replicas) const {
    return given_up_ || exchanges_ >= max_exchanges || kept_ * static_cast<double>(replicas) <= 1;
  }
  /// No partner or no time is left.
  void give_up() { given_up_ = true; }
  [[nodiscard]] std::size_t exchanges() const { return exchanges_; }
  /// Share of its difference that the leaver alone still has.
  [[nodiscard]] double kept() const { return kept_; }

 private:
  double kept_ = 1;
  std::size_t exchanges_ = 0;
  bool given_up_ = false;
  std::vector<NodeId> asked_;
};

}  // namespace gossamer::gossip
