// Timing and reporting, which the subcommands share. Main thread.

#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gossamer::bench {

/// The spread of one quantity over the rounds.
struct RepeatSpread {
  double min = 0;
  double median = 0;
  double max = 0;
};

/// There must be at least one number.
[[nodiscard]] RepeatSpread spread_of(std::vector<double> numbers);

[[nodiscard]] nlohmann::json to_json(const RepeatSpread& spread);

/// For instance "12.3 / 12.9 / 13.4".
[[nodiscard]] std::string text_of(const RepeatSpread& spread, int decimals);

/// The seconds that `work` takes.
template <class Work>
[[nodiscard]] double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace gossamer::bench
