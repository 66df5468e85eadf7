// Rules of the protocol that are broken on purpose, each with the oracle that has to notice it. They prove that the
// hunt finds such faults. A break changes messages on their way, memory between events, a replica's knowledge, or
// options of the replicas without telling the oracles.
//
// `gossamer-sim --sabotage` and the tests run it. One thread.

#pragma once

#include <span>
#include <string>

#include "tools/sim/hunt/scenario.hpp"

namespace gossamer::sim {

struct SabotageRule {
  const char* name;
  const char* broken;  ///< what the rule does, for people
  const char* oracle;  ///< how the message of the expected violation begins
  /// Changes the drawn scenario, so that breaking the rule matters in the run.
  void (*prepare)(Swarm& swarm);
  /// Makes the rule for one run.
  Sabotage (*make)(const Swarm& swarm);
};

[[nodiscard]] std::span<const SabotageRule> sabotage_rules();
/// Null if no rule has that name.
[[nodiscard]] const SabotageRule* sabotage_called(const std::string& name);

/// Runs the seed's scenario with the rule broken.
[[nodiscard]] HuntOutcome run_sabotage(const SabotageRule& rule, std::uint64_t seed);
/// True if the violation is the one that breaking the rule leads to.
[[nodiscard]] bool found_by_its_oracle(const SabotageRule& rule, const HuntOutcome& outcome);

}  // namespace gossamer::sim
