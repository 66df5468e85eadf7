#include "daemon/log/log_fields.hpp"

#include <algorithm>

namespace gossamer::daemon {
namespace {

constexpr std::string_view job_prefix = "job ";
constexpr std::string_view node_prefix = "node ";
constexpr std::size_t brief_digits = 8;

bool is_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/// Finds the first "node " that is followed by exactly eight hexadecimal digits, and returns these digits.
std::string_view node_in(std::string_view text) {
  for (std::size_t at = text.find(node_prefix); at != std::string_view::npos; at = text.find(node_prefix, at + 1)) {
    const std::string_view rest = text.substr(at + node_prefix.size());
    const auto digits = static_cast<std::size_t>(std::ranges::find_if_not(rest, is_digit) - rest.begin());
    const bool goes_on = digits < rest.size() &&
                         (rest[digits] == '-' || rest[digits] == '_' || (rest[digits] >= 'A' && rest[digits] <= 'Z') ||
                          (rest[digits] >= 'g' && rest[digits] <= 'z'));
    if (digits == brief_digits && !goes_on) return rest.substr(0, digits);
  }
  return {};
}

}  // namespace

LogFields fields_of(std::string_view text) {
  LogFields fields{{}, node_in(text), text};
  if (!text.starts_with(job_prefix)) return fields;
  const std::size_t end = text.find(": ");
  if (end == std::string_view::npos || text.find(' ', job_prefix.size()) < end) return fields;
  fields.job = text.substr(job_prefix.size(), end - job_prefix.size());
  fields.message = text.substr(end + 2);
  return fields;
}

}  // namespace gossamer::daemon
