// Configurations, and settings of a job, which travel as text: what is accepted is written down and read again as the
// same.

#include <fmt/format.h>

#include "daemon/config/config.hpp"
#include "daemon/config/config_table.hpp"
#include "gossip/plain_text.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::daemon;

std::string written(const Config& config) {
  std::string text;
  for (const OptionSection& section : option_sections()) {
    text += fmt::format("[{}]\n", section.name);
    for (const Option& option : section.options)
      text += fmt::format("{} = {}\n", option.key, toml_value(option, config));
  }
  return text;
}

void read_config(std::string_view text) {
  const auto config = parse(text, "input");
  if (!config) return;
  const auto again = parse(written(*config), "again");
  GOSSAMER_CHECK(again && written(*again) == written(*config));
  const Reload difference = reload(*config, *again);
  GOSSAMER_CHECK(difference.changed.empty() && difference.need_restart.empty());
  (void)resolved(*config, surroundings());
}

/// NAME = VALUE, one a line.
void read_settings(std::string_view text) {
  std::vector<JobSetting> settings;
  while (!text.empty() && settings.size() < max_job_settings) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t name_bytes = std::min(line.find('='), line.size());
    settings.push_back({std::string(trimmed(line.substr(0, name_bytes), " ")),
                        std::string(trimmed(line.substr(std::min(name_bytes + 1, line.size())), " \""))});
  }
  (void)with_settings({}, settings);
}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = gossamer::fuzz::text_of(data, size);
  gossamer::fuzz::read_config(text);
  gossamer::fuzz::read_settings(text);
  return 0;
}
