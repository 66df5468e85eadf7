// The remaining handover of one fragment by a replica that leaves, so that its training is not lost.
//
// An exchange with weight 2^-shift moves that share of the leaver's difference to its partner. With n replicas, the
// leaver's share in their mean is 1/n. Once it has kept no more than that of its difference alone, the mean of those
// that stay is the former mean of all. This is nearly exact if they mix meanwhile, since a later partner then has some
// of it already. It takes log2(n) exchanges of weight ½, each with a new partner: a second exchange with the same
// partner finds nothing more to move, and is only worth it after a smaller weight.
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

  /// An exchange was concluded: both ends moved by 2^-shift of their difference.
  void exchanged(const NodeId& partner, int shift) {
    kept_ *= 1 - std::ldexp(1.0, -shift);
    ++exchanges_;
    if (shift <= 1) asked_.push_back(partner);
  }
  [[nodiscard]] bool may_ask(const NodeId& partner) const {
    return std::find(asked_.begin(), asked_.end(), partner) == asked_.end();
  }
  /// True if nothing more is to be done, with `replicas` in all.
  [[nodiscard]] bool over(std::size_t replicas) const {
    return given_up_ || exchanges_ >= max_exchanges || kept_ * static_cast<double>(replicas) <= 1;
  }
  /// No partner is left to ask, or no time.
  void give_up() { given_up_ = true; }
  [[nodiscard]] std::size_t exchanges() const { return exchanges_; }
  /// Share of the leaver's difference that it still has alone.
  [[nodiscard]] double kept() const { return kept_; }

 private:
  double kept_ = 1;
  std::size_t exchanges_ = 0;
  bool given_up_ = false;
  std::vector<NodeId> asked_;
};

}  // namespace gossamer::gossip
