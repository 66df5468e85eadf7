#include "daemon/config/syntax_error.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gossip/plain_text.hpp"

namespace gossamer::daemon {
namespace {

/// A message shows at most this much of a line.
constexpr std::size_t max_shown_bytes = 60;
constexpr std::string_view blank = " \t\r";

std::string_view line_of(std::string_view text, std::uint32_t number) {
  for (; number > 1 && text.find('\n') != std::string_view::npos; --number)
    text.remove_prefix(text.find('\n') + 1);
  return trimmed(text.substr(0, text.find('\n')), blank);
}

/// The text as a message may repeat it: "..." stands for text that is long or not plain.
std::string shown(std::string_view text) {
  return is_plain_text(text, max_shown_bytes) ? std::string(text) : "...";
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_switch(std::string_view value) {
  std::string lower(value);
  std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; });
  return lower == "true" || lower == "false" || lower == "yes" || lower == "no" || lower == "on" || lower == "off";
}

/// Says what is wrong with the value of a line NAME = VALUE.
std::string explain_value(std::string_view name, std::string_view value) {
  if (value.empty()) return fmt::format("there is no value behind {} =", shown(name));
  const auto quotes = std::ranges::count(value, '"');
  if (value.front() == '"' && quotes % 2 == 1) return "the text that begins with \" has no \" at its end";
  if (value.front() == '\'' && std::ranges::count(value, '\'') == 1)
    return "the text that begins with ' has no ' at its end";
  if (value.front() == '"' || value.front() == '\'') return "there is something behind the text in quotes";
  if (is_switch(value)) return fmt::format("write {} = true or {} = false", shown(name), shown(name));
  const std::size_t number = value.find_first_not_of("0123456789");
  if (number == std::string_view::npos)
    return value.front() == '0' ? "a number does not begin with 0" : "no number here may be so large";
  if (number > 0 && !has(value, ":") && !has(value, ".") && !has(value, "/"))
    return fmt::format("a number stands alone, without a unit: {} = {}", shown(name), shown(value.substr(0, number)));
  return fmt::format("a text stands in quotes: {} = \"{}\"", shown(name), shown(value));
}

}  // namespace

std::string explain(const SyntaxError& error, std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) return "the file begins with a byte order mark: save it as UTF-8 without one";
  if (has(error.description, "utf-8") || text.find('\0') != std::string_view::npos)
    return "the file is not plain text in UTF-8";
  const std::string_view line = line_of(text, error.line);
  for (const char* quote : {"\u201c", "\u201d", "\u201e", "\u2018", "\u2019"})
    if (has(line, quote)) return fmt::format("{} is no quote that TOML knows: write \"", quote);
  const std::size_t equals = line.find('=');
  const std::string_view name = trimmed(line.substr(0, equals), blank);
  if (has(error.description, "redefine"))
    return fmt::format("{} stands in the file twice", line.front() == '[' ? shown(line) : shown(name));
  if (has(error.description, "array"))
    return has(error.description, "end-of-file") ? "a list that begins with [ has no ] at its end"
                                                 : "the entries of a list have commas between: [\"one\", \"two\"]";
  if (has(error.description, "escape"))
    return "\\ has a meaning of its own between double quotes: write \\\\, or single quotes around the text";
  if (line.starts_with('[')) return "the name of a section stands between [ and ], alone on its line: [overlay]";
  if (equals == std::string_view::npos || name.empty())
    return fmt::format("a line is NAME = VALUE, a section such as [overlay], or a comment behind #; here is: {}",
                       shown(line));
  std::string_view value = line.substr(equals + 1);
  if (!has(value, "\"")) value = value.substr(0, value.find('#'));
  return explain_value(name, trimmed(value, blank));
}

}  // namespace gossamer::daemon
