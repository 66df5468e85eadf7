#include "tools/ctl/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "gossip/plain_text.hpp"

namespace gossamer::ctl {
namespace {

/// `value` with three digits and the prefix that suits it: k, M, G, T or P.
std::string scaled(double value, const char* unit) {
  constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (value >= 999.5 && prefix + 1 < std::size(prefixes)) {
    value /= 1000;
    ++prefix;
  }
  const int decimals = prefix == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, decimals, prefixes[prefix], unit);
}

std::size_t code_points(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

const char* colour_of(Tone tone) {
  constexpr std::array colours = {"", "\033[32m", "\033[31m", "\033[2m"};  // plain, good, bad, dim
  return colours[static_cast<std::size_t>(tone)];
}

}  // namespace

std::string bytes_text(double bytes) {
  return scaled(bytes, "B");
}

std::string count_text(double count) {
  if (count < 100'000) return fmt::format("{:.0f}", count);
  return scaled(count, "");
}

std::string duration_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} m {:02} s", whole / 60, whole % 60);
  if (whole < 48 * 3600) return fmt::format("{} h {:02} m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {:02} h", whole / 86'400, whole % 86'400 / 3600);
}

std::string safe_text(const std::string& text) {
  if (is_plain_text(text, text.size())) return text;
  std::string safe = text;
  std::ranges::replace_if(
      safe, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return safe;
}

std::string Table::render(bool colour) const {
  if (rows.empty()) return if_empty + "\n";
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < rows.front().size(); ++column) {
    std::size_t width = heading.empty() ? 0 : code_points(heading[column]);
    for (const std::vector<Cell>& row : rows)
      width = std::max(width, code_points(row[column].text));
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](auto text_of, auto right_of, auto colour_at) {
    std::string cells;
    for (std::size_t column = 0; column < widths.size(); ++column) {
      const std::string text = text_of(column);
      const std::string padding(widths[column] - code_points(text), ' ');
      const std::string tone = colour ? colour_at(column) : "";
      const std::string shown = tone.empty() ? text : tone + text + "\033[0m";
      const bool last = column + 1 == widths.size();
      if (column > 0) cells += "  ";
      cells += right_of(column) ? padding + shown : last ? shown : shown + padding;
    }
    out += cells + "\n";
  };
  if (!heading.empty())
    line([&](std::size_t c) { return heading[c]; }, [&](std::size_t c) { return rows.front()[c].right; },
         [](std::size_t) -> std::string { return "\033[1m"; });
  for (const std::vector<Cell>& row : rows)
    line([&](std::size_t c) { return row[c].text; }, [&](std::size_t c) { return row[c].right; },
         [&](std::size_t c) -> std::string { return colour_of(row[c].tone); });
  return out;
}

std::string text_in(const nlohmann::json& answer, const char* member) {
  return safe_text(answer.at(member).get<std::string>());
}

std::optional<std::int64_t> seconds_of(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::int64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86'400 : 0;
  constexpr std::int64_t most = 1'000'000;
  if (error != std::errc() || seconds == 0 || number <= 0 || number > most) return std::nullopt;
  return number * seconds;
}

std::string time_complaint(const std::string& text) {
  return seconds_of(text) ? std::string() : "a number from 1 to 1000000 and a unit are expected: 90s, 30m, 24h or 7d";
}

}  // namespace gossamer::ctl
