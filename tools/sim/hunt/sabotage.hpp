// Rules broken on purpose, each with the oracle that has to see it: proof that the hunt finds what it is for. Broken
// are messages on their way, memory between events, what a replica remembers, or options of the replicas that the
// oracles do not know of.
//
// Who runs it: `gossamer-sim --sabotage`, and with it the tests. One thread.

#pragma once

#include <span>
#include <string>

#include "tools/sim/hunt/scenario.hpp"

namespace gossamer::sim {

struct SabotageRule {
  const char* name;
  const char* broken;  ///< what it does, for people
  const char* oracle;  ///< what a violation that it leads to begins with
  /// Changes what was drawn, so that the rule matters in the run.
  void (*prepare)(Swarm& swarm);
  /// For one run.
  Sabotage (*make)(const Swarm& swarm);
};

[[nodiscard]] std::span<const SabotageRule> sabotage_rules();
/// Null if there is none of that name.
[[nodiscard]] const SabotageRule* sabotage_called(const std::string& name);

/// The seed's run with the rule broken.
[[nodiscard]] HuntOutcome run_sabotage(const SabotageRule& rule, std::uint64_t seed);
/// The violation is the one that the rule's breaking leads to.
[[nodiscard]] bool found_by_its_oracle(const SabotageRule& rule, const HuntOutcome& outcome);

}  // namespace gossamer::sim
