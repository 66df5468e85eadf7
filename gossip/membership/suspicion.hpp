// How long a silent member has before it counts as dead, and how far a node trusts its own judgement. These are the
// three parts of Lifeguard that are arithmetic (Dadgar, Phillips & Currey 2018, "Lifeguard: Local Health Awareness for
// More Accurate Failure Detection", arXiv 1707.00788).
//
// These are values with one owner, one thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

/// Number of other accusers that may shorten a suspicion. It bounds the memory of one suspicion.
inline constexpr std::size_t max_confirmations = 8;

/// Bounds on a suspicion's length (section IV-B): min = mult · max(1, log10 n) · probe interval, max = max_mult · min.
/// If fewer than mult - 2 others could confirm, it has the length min at once.
struct SuspicionBounds {
  TimeUs min_us = 0;
  TimeUs max_us = 0;
  std::size_t confirmations = 0;  ///< so many confirmations shorten the suspicion to min

  friend bool operator==(const SuspicionBounds&, const SuspicionBounds&) = default;
};
[[nodiscard]] SuspicionBounds suspicion_bounds(unsigned mult, unsigned max_mult, std::size_t nodes,
                                               TimeUs probe_interval_us);

/// Length of a suspicion with C of K confirmations: max − (max − min) · log(C + 1) / log(K + 1), at least min.
[[nodiscard]] TimeUs suspicion_timeout_us(const SuspicionBounds& bounds, std::size_t confirmations);

/// Number of times that one node sends a piece of news: mult · ⌈log10(n + 1)⌉ (Das et al. 2002, "SWIM", section 4.1: a
/// multiple of log n reaches all with high probability).
[[nodiscard]] unsigned retransmission_limit(unsigned mult, std::size_t nodes);

/// A member's accusers, the beginning of the suspicion, and its deadline for a refutation.
class Suspicion {
 public:
  Suspicion() = default;
  Suspicion(const SuspicionBounds& bounds, const NodeId& accuser, TimeUs now_us);

  /// True if this accuser is new and shortens the suspicion.
  bool confirm(const NodeId& accuser);
  [[nodiscard]] TimeUs deadline_us() const { return begun_us_ + suspicion_timeout_us(bounds_, accusers_.size() - 1); }
  [[nodiscard]] const std::vector<NodeId>& accusers() const { return accusers_; }

 private:
  SuspicionBounds bounds_ = {};
  TimeUs begun_us_ = 0;
  std::vector<NodeId> accusers_;
};

/// Local health multiplier (section IV-A). 0 is well; each sign that this node is slow adds one, each success takes one
/// away. Probes are stretched by (score + 1), so that a slow node accuses late.
class LocalHealth {
 public:
  static constexpr int max_score = 8;

  void change(int by) { score_ = std::clamp(score_ + by, 0, max_score); }
  [[nodiscard]] int score() const { return score_; }
  [[nodiscard]] TimeUs scale(TimeUs time_us) const { return time_us * (score_ + 1); }

 private:
  int score_ = 0;
};

}  // namespace gossamer::gossip
