// How far one partner may move a replica.
//
// Three bounds, from loose to tight. Every block has a *limit*: the largest difference that is taken for one at all, a
// large multiple of the disagreement learned (BlockSteps::limit_exponent()). What a node has learned can be raised by
// one partner only so far, as long as others do not confirm it (BlockSteps::observe()). And a fragment may *clip*:
// self-centred clipping of He, Karimireddy & Jaggi (2022, arXiv 2202.01545, eq. 4 and 5), for pairs. There a node
// averages with x_i + clip(x_j − x_i, τ_i), here both ends of a pair take the larger power of two of
//
//   2^-a · ‖s·D‖ ≤ min(τ_i, τ_j) / 2
//
// so that both move by the same amount and the sum over honest replicas stays. τ is `clip` times the lower median,
// over the partners that the fragment was last exchanged with, of the distance ‖s·D‖ found: a minority of partners
// cannot move it, whatever they send and however often.
//
// Where nobody trains any more, that median falls to nothing while a replica that was away is still on its way, and the
// thresholds would fall faster than it closes in: it would never arrive. So τ does not fall below a small share of the
// fragment's own norm, for a partner that comes closer when it is exchanged with (ApproachRecord): who stands still in
// spite of what the exchanges should bring loses that again, and total influence with it.
//
// Owned by Replica (the loop's thread); the functions are pure.

#pragma once

#include <array>
#include <optional>

#include "gossip/lattice.hpp"

namespace gossamer::gossip {

/// Partners that a fragment remembers the distance to: the latest ones.
inline constexpr std::size_t remembered_partners = 16;
/// With fewer partners there is no telling who is the odd one: nothing is clipped, and every partner is believed.
inline constexpr std::size_t witnesses_least = 3;

/// The threshold is not lower than this share of the fragment's own 2-norm, for whom there is no doubt about.
inline constexpr float floor_share = 0x1p-8F;
/// Exchanges after which a far partner may be seen to have come closer, and by which it must have,
inline constexpr int approach_soonest = 8;
inline constexpr int approach_latest = 32;
/// by at least this share of its distance, which no quantiser's noise feigns.
inline constexpr float approach_least = 0x1p-6F;

/// Powers of two by which the share grows for a partner that keeps coming closer.
inline constexpr int trust_most = 2;

/// Whether a partner that is beyond the threshold comes closer by what the exchanges with it take off the distance: an
/// honest replica does, and so does whoever acts like one, at the price of becoming harmless.
class ApproachRecord {
 public:
  /// `distance` as found before the exchange, which takes `taken` off it; `far`: beyond the threshold.
  void observe(float distance, float taken, bool far);
  /// floor_share, halved for each time that it did not, and doubled up to trust_most times for each that it did.
  [[nodiscard]] float share() const;

 private:
  float begun_ = 0;  // the distance when counting began
  float taken_ = 0;  // off it, since
  std::uint8_t exchanges_ = 0;
  std::int8_t doubts_ = 0;  // negative: trust
};

/// Whom an exchange was with, in short, and whether there is anyone else to compare it with.
struct Witness {
  std::uint16_t partner = 0;
  bool alone = true;
};

/// The distances that one fragment's exchanges found, the last one for each partner.
class DistanceRecord {
 public:
  /// `taken`: what the exchange takes off the distance; `far`: the distance is beyond the threshold.
  void observe(const NodeId& partner, double distance, double taken = 0, bool far = false);
  /// ApproachRecord::share() of the partner.
  [[nodiscard]] float share(const NodeId& partner) const;
  [[nodiscard]] std::size_t partners() const { return count_; }
  /// The lower median over partners; none with fewer than witnesses_least.
  [[nodiscard]] std::optional<float> median() const;
  [[nodiscard]] Witness witness(const NodeId& partner) const;

 private:
  struct Seen {
    std::uint32_t partner = 0;
    float distance = 0;
    ApproachRecord approach = {};
  };
  std::array<Seen, remembered_partners> seen_;  // the first count_, oldest first
  std::size_t count_ = 0;
};

/// Powers of two by which the threshold is lower, at most, for a partner that always is far beyond it.
inline constexpr int extra_shift_most = 3;

/// How far beyond the threshold one partner uses to be. Who always is far beyond it weighs less, within a bound: it may
/// be an honest node that has been away for long.
class ClipRecord {
 public:
  /// `excess`: the distance found over the threshold, before it is lowered for this partner.
  void observe(double excess);
  /// Powers of two by which the threshold is lower for this partner.
  [[nodiscard]] int extra_shift() const;

 private:
  double excess_log2_ = 0;  // smoothed, of those above 1
};

/// An end's threshold as a task is given it.
struct Clip {
  float threshold = 0;  ///< τ; 0: not known, for want of partners to compare
  float multiple = 0;   ///< then τ is this many times the distance that the estimates expect; 0: do not clip
  float share = 0;      ///< τ is at least this share of the norm of the end's own values
};

/// ‖s·D‖ over the blocks in range.
[[nodiscard]] double norm_of(std::span<const BlockOutcome> outcomes);

/// Smallest a ≥ 1 with 2^-a · norm ≤ threshold / 2. A threshold of 0 stands for none: 1. May exceed max_shift_bound.
[[nodiscard]] int clip_shift(double norm, float threshold);

/// The lower of two thresholds, of which 0 stands for none.
[[nodiscard]] float lower_threshold(float a, float b);

}  // namespace gossamer::gossip
