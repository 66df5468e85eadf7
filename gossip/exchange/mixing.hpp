// How strongly two replicas mix: an exchange has the weight 2^-a, and this chooses a.
//
// Averaging with several partners from one old state overshoots, because the moves add up. So each fragment has a
// budget: the weights of its overlapping exchanges sum to at most `budget` (1 on a LAN, ½ on a WAN). An old state
// weighs less, and so does a block whose quantisation noise comes near to what averaging removes. The responder
// decides; the initiator only says what is left of its budget. Both ends move alike, unless replicas weigh by their
// samples.
//
// This is pure arithmetic; any thread.

#pragma once

#include <optional>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

/// An answer with a weight below 2^-weakest_shift is not worth its bytes: the request is answered busy instead.
inline constexpr int weakest_shift = 5;

/// The weights of one fragment's overlapping exchanges at one node.
class MixingBudget {
 public:
  explicit MixingBudget(float budget) : budget_(budget) {}

  /// Exchanges under way keep their weights.
  void set(float budget) { budget_ = budget; }
  /// The node is about to send a request of its own. Promises half the budget to it, and returns its min_shift.
  int begin_own();
  /// The min_shift of a request of its own.
  [[nodiscard]] int own_shift() const;
  /// The node's own request has ended, whatever its result.
  void end_own();
  /// The shift that an answer may have now, given the exchanges under way; none if the budget is used up. `crossing`:
  /// the request comes from the node that this node's own request was sent to. That node will therefore decline ours.
  [[nodiscard]] std::optional<int> answer_shift(bool crossing = false) const;
  /// An answer was committed with this shift.
  void answered(int shift);
  [[nodiscard]] bool own_under_way() const { return own_ > 0; }

 private:
  float budget_;
  float own_ = 0;
  float answered_ = 0;  // since the node's own request was encoded
};

/// Added to the shift for old values: 0 up to 4 of the replica's own publication intervals, then 1, and 2 from 16 on.
[[nodiscard]] int age_shift(const Age& age);

/// Added to the shift for quantisation noise. Mixing with weight w leaves (1 − 2w)² + 4w²·v of the expected squared
/// distance, where v is the noise's variance over the squared difference. This shift leaves the least.
/// All arguments are sums over elements. `square` = (s·D)², which is signal plus noise. `noise` = s·|s·D|, a bound on
/// the variance. `normal` = π/2 · (mean |s·D|)², the signal if differences are normal (heavier tails have more).
[[nodiscard]] int noise_shift(double noise, double square, double normal);

/// What each end adds to the shift where replicas weigh by their samples.
struct WeightShifts {
  int initiator = 0;
  int responder = 0;
};

/// The ratio of two replicas' samples counts for 2^most_weight_shift at most.
inline constexpr int most_weight_shift = 6;

/// The end with more samples a step moves less, by the ratio of both. So the mean that replicas come to is weighted by
/// these numbers: π_i·w_ij = π_j·w_ji holds for π in proportion to them. Shifts are whole: `chance`, in [0, 1), decides
/// between the two next to the ratio, so that its mean is right. 0: this end has trained nothing and only follows; the
/// other has the least weight.
[[nodiscard]] WeightShifts weight_shifts(double initiator, double responder, double chance);

}  // namespace gossamer::gossip
