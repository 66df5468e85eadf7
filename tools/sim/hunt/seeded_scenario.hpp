// Types that scenarios with a command of their own share: the counts of a run, and the faults that are made on purpose
// to show that the scenario finds them. Values; any thread.

#pragma once

#include <cstdint>
#include <random>
#include <string_view>

namespace gossamer::sim {

/// A random first seed.
inline std::uint64_t fresh_seed() {
  std::random_device entropy;
  return (std::uint64_t{entropy()} << 16) + 1;
}

/// A fault that a scenario is given on purpose.
template <class Fault>
struct FaultRule {
  Fault fault;
  const char* name;
};

/// Something that a scenario has counted.
struct ScenarioCount {
  std::string_view what;
  std::uint64_t value = 0;
};

}  // namespace gossamer::sim
