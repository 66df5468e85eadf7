// What scenarios with a command of their own have in common: a run for each seed, which counts things, and rules that
// are broken on purpose to show that the scenario finds it. Values; any thread.

#pragma once

#include <cstdint>
#include <random>
#include <string_view>

namespace gossamer::sim {

/// A first seed that nobody knows yet.
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
