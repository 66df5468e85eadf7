// What a replica that leaves still has to hand over of one fragment, so that the training it did is not lost with it.
//
// An exchange with weight 2^-shift moves that share of the leaver's difference to its partner. With n replicas, the
// leaver's share in their mean is 1/n: when it has kept no more than that of what set it apart, the mean of those that
// stay is what the mean of all was; nearly, if they mix meanwhile, since a later partner then has some of it already.
// That takes log2(n) exchanges of weight ½, each with a partner that has not had one: a second one with the same
// partner finds nothing more to move, and is worth it only after a gentler weight.
//
// Pure book-keeping, owned by gossip/replica/replica.hpp.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::gossip {

class Handover {
 public:
  /// Exchanges for one fragment; beyond 2^this replicas a little more of the leaver's training is lost.
  static constexpr std::size_t max_exchanges = 10;

  /// One was concluded: both ends moved by 2^-shift of their difference.
  void exchanged(const NodeId& partner, int shift) {
    kept_ *= 1 - std::ldexp(1.0, -shift);
    ++exchanges_;
    if (shift <= 1) asked_.push_back(partner);
  }
  [[nodiscard]] bool may_ask(const NodeId& partner) const {
    return std::find(asked_.begin(), asked_.end(), partner) == asked_.end();
  }
  /// Nothing is to be done any more, among `replicas` in all.
  [[nodiscard]] bool over(std::size_t replicas) const {
    return given_up_ || exchanges_ >= max_exchanges || kept_ * static_cast<double>(replicas) <= 1;
  }
  /// Nobody is left to ask, or no time.
  void give_up() { given_up_ = true; }
  [[nodiscard]] std::size_t exchanges() const { return exchanges_; }
  /// Share of what set the leaver apart that it still has alone.
  [[nodiscard]] double kept() const { return kept_; }

 private:
  double kept_ = 1;
  std::size_t exchanges_ = 0;
  bool given_up_ = false;
  std::vector<NodeId> asked_;
};

}  // namespace gossamer::gossip
