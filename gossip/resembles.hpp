// Tells whether a mistyped word was probably meant to be a known one.
//
// Pure, any thread.

#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer {

/// How many characters have to be changed, added or removed to turn one text into the other (Levenshtein).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

[[nodiscard]] inline bool resembles(std::string_view typed, std::string_view known) {
  return typed.size() <= 64 && edit_distance(typed, known) <= std::max<std::size_t>(2, known.size() / 3);
}

}  // namespace gossamer
