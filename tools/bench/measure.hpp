// Timing and reporting that the subcommands share. Main thread.

#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gossamer::bench {

/// Of one quantity over the rounds.
struct Spread {
  double min = 0;
  double median = 0;
  double max = 0;
};

/// Of at least one number.
[[nodiscard]] Spread spread_of(std::vector<double> numbers);

[[nodiscard]] nlohmann::json to_json(const Spread& spread);

/// "12.3 / 12.9 / 13.4"
[[nodiscard]] std::string text_of(const Spread& spread, int decimals);

/// Seconds that `work` takes.
template <class Work>
[[nodiscard]] double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace gossamer::bench
