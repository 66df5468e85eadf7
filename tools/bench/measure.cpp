#include "tools/bench/measure.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gossamer::bench {

RepeatSpread spread_of(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const std::size_t middle = numbers.size() / 2;
  const double median = numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
  return {numbers.front(), median, numbers.back()};
}

nlohmann::json to_json(const RepeatSpread& spread) {
  return {{"min", spread.min}, {"median", spread.median}, {"max", spread.max}};
}

std::string text_of(const RepeatSpread& spread, int decimals) {
  return fmt::format("{:.{}f} / {:.{}f} / {:.{}f}", spread.min, decimals, spread.median, decimals, spread.max,
                     decimals);
}

}  // namespace gossamer::bench
