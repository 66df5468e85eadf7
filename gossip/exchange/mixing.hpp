// How strongly two replicas mix: the exponent a of the weight 2^-a that one exchange gives.
//
// Averaging with several partners from one old state overshoots (the moves add up), so each fragment has a budget: the
// weights of all exchanges of it that overlap sum to at most `budget` (1 on a LAN, ½ on a WAN). Old state weighs less,
// and so does a block whose quantisation noise comes near what averaging removes. The responder decides; the initiator
// only says what it has left.
//
// Pure arithmetic; any thread.

#pragma once

#include <optional>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

/// An answer that could only be given at a smaller weight than 2^-this is not worth its bytes: busy instead.
inline constexpr int weakest_shift = 5;

/// The weights of one fragment's overlapping exchanges at one node.
class MixingBudget {
 public:
  explicit MixingBudget(float budget) : budget_(budget) {}

  /// The node is about to send a request of its own: promises half the budget to it. Returns its min_shift.
  int begin_own();
  /// The node's own request has ended, whichever way.
  void end_own();
  /// The shift an answer may have right now, given what else is under way; nothing if the budget is used up.
  /// `crossing`: the request comes from the very node that ours is out to, and which will therefore decline ours.
  [[nodiscard]] std::optional<int> answer_shift(bool crossing = false) const;
  /// An answer was committed with this shift.
  void answered(int shift);
  [[nodiscard]] bool own_under_way() const { return own_ > 0; }

 private:
  float budget_;
  float own_ = 0;
  float answered_ = 0;  // since the node's own request was encoded
};

/// Added to the shift for values computed from a state this old: 0 up to 4 of the replica's own publication intervals,
/// then 1, from 16 on 2.
[[nodiscard]] int age_shift(const Age& age);

/// Added to the shift for quantisation noise. Mixing with weight w leaves (1 − 2w)² + 4w²·v of the expected squared
/// distance, where v is the noise's variance over the squared difference: this is the shift that leaves least.
/// All three are sums over elements: `square` = (s·D)², which is signal plus noise; `noise` = s·|s·D|, a bound on the
/// variance; `normal` = π/2 · (mean |s·D|)², the signal if differences are normal (heavier tails have more).
[[nodiscard]] int noise_shift(double noise, double square, double normal);

}  // namespace gossamer::gossip
