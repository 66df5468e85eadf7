// The phases of a replica and the allowed transitions. docs/design.md draws the same table; a test compares the two.

#pragma once

#include <array>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

enum class Phase : std::uint8_t {
  joining,   ///< its model is not yet chosen or not yet pulled
  running,   ///< trains and gossips
  drained,   ///< the operator has drained it: it exchanges nothing, gives its model to joiners, and may run again
  stopping,  ///< its client or its daemon is about to end: starts and answers nothing new
  leaving,   ///< like stopping, but it first hands its training over (gossip/replica/handover.hpp)
};
inline constexpr std::array<const char*, 5> phase_names = {"joining", "running", "drained", "stopping", "leaving"};

/// Entering the same phase again is allowed: the neighbours are then told once more.
[[nodiscard]] constexpr bool may_follow(Phase from, Phase to) {
  switch (from) {
    case Phase::joining:
      return to != Phase::drained;
    case Phase::running:
    case Phase::drained:
      return to != Phase::joining;
    case Phase::stopping:
      return to == Phase::stopping || to == Phase::leaving;
    case Phase::leaving:
      return to == Phase::leaving;
  }
  return false;
}

/// The state that neighbours are told for a phase.
[[nodiscard]] constexpr ReplicaState state_of(Phase phase) {
  switch (phase) {
    case Phase::joining:
      return ReplicaState::joining;
    case Phase::running:
      return ReplicaState::running;
    default:
      return ReplicaState::draining;
  }
}

/// True if the model is complete and may be given to joiners.
[[nodiscard]] constexpr bool has_model(Phase phase) {
  return phase == Phase::running || phase == Phase::drained;
}

}  // namespace gossamer::gossip
