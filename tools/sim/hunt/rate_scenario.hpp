// Whether others slow replicas that train together. The same trainers run twice: by themselves, and with companions,
// which are at most a third of all. These keep or follow the job, answer nothing, turn everything down, hold NaN, stand
// still or are far away. They may be there for good reasons, but each trainer exchanges about as often as without them.
//
// Others pull: they ask one trainer for more exchanges than it should have with them, with a model that is far away and
// stays so. Members have certificates then, and the trainer stays with the other trainers.
//
// The hunt's own oracle of progress bounds single waits, so a steady loss of rate passes it.
//
// One seed decides everything. One thread.

#pragma once

#include <array>
#include <cstdint>

#include "tools/sim/hunt/seeded_scenario.hpp"

namespace gossamer::sim {

struct RateOutcome {
  std::uint64_t events = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t companions = 0;

  [[nodiscard]] std::array<ScenarioCount, 3> counts() const {
    return {{{"events", events}, {"exchanges", exchanges}, {"companions", companions}}};
  }
};

/// A fault that is made on purpose, to show that the scenario finds it.
enum class RateFault {
  none,
  lossy,   ///< with companions, messages between trainers are lost
  untold,  ///< requests do not tell which distance is usual
};
inline constexpr FaultRule<RateFault> rate_faults[] = {{RateFault::lossy, "lossy"}, {RateFault::untold, "untold"}};

/// Throws std::runtime_error with a text if a trainer is slowed or drawn away.
RateOutcome run_rate_scenario(std::uint64_t seed, RateFault fault);

}  // namespace gossamer::sim
