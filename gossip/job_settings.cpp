#include "gossip/job_settings.hpp"

#include <algorithm>

#include "gossip/plain_text.hpp"

namespace gossamer {

namespace {

constexpr std::string_view white_space = " \t\r\n";

bool is_setting_name(std::string_view name) {
  return !name.empty() && name.size() <= max_setting_name_bytes &&
         std::ranges::all_of(name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

bool is_setting_value(std::string_view value) {
  return !value.empty() && is_plain_text(value, max_setting_value_bytes) && value.find(' ') == std::string_view::npos;
}

}  // namespace

std::string settings_text(const std::vector<JobSetting>& values) {
  std::string text;
  for (const JobSetting& setting : values)
    text += (text.empty() ? "" : " ") + setting.name + '=' + setting.value;
  return text;
}

std::vector<JobSetting> settings_in(std::string_view text) {
  std::vector<JobSetting> values;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(white_space), text.size()));
    if (text.empty()) return values;
    const std::string_view word = text.substr(0, text.find_first_of(white_space));
    const std::size_t equals = std::min(word.find('='), word.size());
    values.push_back(
        {std::string(word.substr(0, equals)), std::string(word.substr(std::min(equals + 1, word.size())))});
    text.remove_prefix(word.size());
  }
}

std::optional<std::string_view> fault_of(const JobSettings& settings) {
  if (settings.version > max_settings_version) return "version of the settings out of bounds";
  const auto& values = settings.values;
  if (values.size() > max_job_settings) return "too many settings";
  for (const JobSetting& setting : values) {
    if (!is_setting_name(setting.name)) return "malformed name of a setting";
    if (!is_setting_value(setting.value)) return "a setting's value is empty, too long, or has white space in it";
  }
  const auto not_ascending = [](const JobSetting& a, const JobSetting& b) { return a.name >= b.name; };
  if (std::ranges::adjacent_find(values, not_ascending) != values.end())
    return "a name stands twice, or the names are not in order";
  return {};
}

}  // namespace gossamer
