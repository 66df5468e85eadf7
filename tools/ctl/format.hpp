// Numbers for people, and tables of text with aligned columns. Pure.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gossamer::ctl {

[[nodiscard]] std::string bytes_text(double bytes);       ///< "12.3 MB": powers of 1000
[[nodiscard]] std::string count_text(double count);       ///< "25.3 M"; whole below 100,000
[[nodiscard]] std::string duration_text(double seconds);  ///< "3 m 12 s"
/// `text` without characters that could control a terminal.
[[nodiscard]] std::string safe_text(const std::string& text);

/// A text in a daemon's answer, safe to print.
[[nodiscard]] std::string text_in(const nlohmann::json& answer, const char* member);
/// Converts "90s", "30m", "24h" or "7d" to seconds; nothing for any other text.
[[nodiscard]] std::optional<std::int64_t> seconds_of(const std::string& text);
/// The error message for text that seconds_of() does not accept. Empty if the text is right, as CLI11 wants it.
[[nodiscard]] std::string time_complaint(const std::string& text);

enum class Tone : std::uint8_t { plain, good, bad, dim };

struct Cell {
  std::string text;
  bool right = false;  ///< whether the column's cells are aligned right
  Tone tone = Tone::plain;
};

/// Rows below a heading. Every row has as many cells as the heading, unless the heading is empty. Widths are in code
/// points.
struct Table {
  std::vector<std::string> heading = {};
  std::vector<std::vector<Cell>> rows = {};
  std::string if_empty = {};  ///< the text if there are no rows

  [[nodiscard]] std::string render(bool colour) const;
};

}  // namespace gossamer::ctl
