// How far one partner may move a replica.
//
// There are three bounds, from loose to tight. Every block has a *limit*: the largest difference that is accepted at
// all, a large multiple of the learned disagreement (BlockSteps::limit_exponent()). One partner can raise what a node
// has learned only so far, as long as others do not confirm it (BlockSteps::observe()). And a fragment may *clip*: this
// is the self-centred clipping of He, Karimireddy & Jaggi (2022, arXiv 2202.01545, eq. 4 and 5), for pairs. There a
// node averages with x_i + clip(x_j − x_i, τ_i); here both ends of a pair take the largest power of two with
//
//   2^-a · ‖s·D‖ ≤ min(τ_i, τ_j) / 2
//
// so that both move by the same amount and the sum over honest replicas is unchanged. τ is `clip` times the lower
// median of the distances ‖s·D‖ found with the partners that the fragment was last exchanged with. Partners that the
// same sponsor has admitted have one voice together. So a minority of sponsors cannot move the median, however many
// nodes they have, and whatever and however often these send. But they can draw the replica itself away, after which
// its own distances to all others are large. So with a tight clip (below loose_clip) the same median of what these
// partners say they usually find counts, if it is lower.
//
// Owned by Replica (on the loop's thread); the functions are pure.

#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>

#include "gossip/codec/lattice.hpp"

namespace gossamer::gossip {

/// Number of partners (the latest ones) whose distance a fragment remembers.
inline constexpr std::size_t remembered_partners = 16;
/// With fewer partners there is no median, and every partner is believed: nobody can tell which one is wrong.
inline constexpr std::size_t witnesses_least = 3;

/// The partner of an exchange, under a short name. Partners that one sponsor has admitted share a name, unless all
/// known partners are of that sponsor. `alone`: there are too few partners to compare it with.
struct Witness {
  std::uint16_t partner = 0;
  bool alone = true;
};

/// The distances that one fragment's exchanges found: the last one for each partner, and what that partner last said it
/// usually finds itself. If the record is full, a new partner replaces the oldest entry of the voice that has the most.
class DistanceRecord {
 public:
  void observe(const NodeId& partner, double distance, Sponsor sponsor = no_sponsor);
  /// A partner that is in the record says which distance it usually finds; 0: it does not know.
  void told(const NodeId& partner, float usual);
  /// Drops the distance of a partner that is gone: it says nothing of the partners that remain.
  void forget(const NodeId& partner);
  [[nodiscard]] std::size_t partners() const { return count_; }
  /// The lower median over sponsors, each of which counts as much as any other; none with fewer partners than
  /// witnesses_least.
  [[nodiscard]] std::optional<float> median() const { return median_of(&Seen::distance, witnesses_least); }
  /// The same of what the partners said; none also if too many of them have not said anything.
  [[nodiscard]] std::optional<float> told_median() const;
  /// What this node says to others: the median, or the lower of only two distances; 0: not known.
  [[nodiscard]] float usual() const { return median_of(&Seen::distance, 2).value_or(0); }
  [[nodiscard]] Witness witness(const NodeId& partner, Sponsor sponsor = no_sponsor) const;

 private:
  struct Seen {
    std::uint32_t partner = 0;
    std::uint32_t voice = 0;  ///< its sponsor's voice, or a voice of its own
    float distance = 0;
    float usual = std::numeric_limits<float>::infinity();  ///< what it says it usually finds; infinity: not known
  };
  [[nodiscard]] std::optional<float> median_of(float Seen::*what, std::size_t least) const;
  [[nodiscard]] std::span<const Seen> seen() const { return std::span(seen_).first(count_); }
  [[nodiscard]] std::ptrdiff_t with_voice(std::uint32_t voice) const;

  std::array<Seen, remembered_partners> seen_;  // the first count_ are used, oldest first
  std::size_t count_ = 0;
};

/// A short name for a partner's voice: its sponsor's name, or its own if the sponsor is not known.
[[nodiscard]] std::uint32_t voice_of(const NodeId& partner, Sponsor sponsor);

/// The voices of a fragment's last partners.
class VoiceTurns {
 public:
  void note(std::uint32_t voice, TimeUs now_us) { last_[next_++ % last_.size()] = {voice, now_us}; }
  /// How many of the last exchanges the voice has had after `since_us`.
  [[nodiscard]] std::size_t had(std::uint32_t voice, TimeUs since_us) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(last_, [&](const Turn& turn) { return turn.voice == voice && turn.at_us > since_us; }));
  }
  /// True if a voice with `turns` of the last exchanges has had `times` its share of them, 1 / `voices`.
  [[nodiscard]] static bool is_its_part(std::size_t turns, std::size_t voices, double times) {
    return static_cast<double>(turns * voices) >= times * remembered_partners;
  }

 private:
  struct Turn {
    std::uint32_t voice = 0;
    TimeUs at_us = std::numeric_limits<TimeUs>::min();
  };

  std::array<Turn, remembered_partners> last_{};
  std::uint8_t next_ = 0;
};

/// A `clip` of loose_clip or more is for clusters whose members are trusted; it guards against faults, not attacks.
/// Where replicas hardly move, the median falls with every exchange and would hold off an honest replica that comes
/// late. So τ is then at least loose_threshold times ‖y‖.
inline constexpr float loose_clip = 4;
inline constexpr double loose_threshold = 0.5;

/// Largest number of powers of two that lower the threshold for a partner that is always far beyond it.
inline constexpr int extra_shift_most = 3;
/// With a loose clip, an honest replica is at most so many powers of two beyond the threshold, even if it was away for
/// long: models of equal norms are at most twice that norm apart. What is farther has gone wild (a bug, a broken GPU).
inline constexpr int loose_excess_log2 = 2;

/// How far beyond the threshold one partner usually is. A partner that is always far beyond it weighs less, within a
/// bound: it may be an honest node that was away for long. With a loose clip there is no bound for one that is wild:
/// its threshold falls with the cube of the excess, and at once. Otherwise its pulls make the replicas differ, and so
/// raise the threshold that is to bound them.
class ClipRecord {
 public:
  /// `excess`: the distance found over the threshold, before it is lowered for this partner. `loose`: the clip is.
  void observe(double excess, bool loose);
  /// Powers of two by which the threshold is lower for this partner.
  [[nodiscard]] int extra_shift(bool loose) const;
  /// With a loose clip: it is farther than an honest replica can be.
  [[nodiscard]] bool is_wild() const { return excess_log2_ > loose_excess_log2; }

 private:
  double excess_log2_ = 0;  // smoothed; an excess below 1 counts as 1
};

/// The threshold of one end of an exchange, as the loop gives it to a task.
struct Clip {
  float threshold = 0;  ///< τ; 0: not known, since there are too few partners to compare
  float multiple = 0;   ///< τ is then this many times the distance that the estimates expect; 0: do not clip
  float least = 0;      ///< and at least this
};

/// ‖s·D‖ over the blocks in range.
[[nodiscard]] double norm_of(std::span<const BlockOutcome> outcomes);

/// Smallest a ≥ 1 with 2^-a · norm ≤ threshold / 2. Threshold 0 means none; the result is then 1. It may exceed
/// max_shift_bound.
[[nodiscard]] int clip_shift(double norm, float threshold);

/// The lower of two thresholds. 0 means that there is no threshold.
[[nodiscard]] float lower_threshold(float a, float b);

}  // namespace gossamer::gossip
