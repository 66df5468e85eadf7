#include "daemon/jobs/job_options.hpp"

#include <fmt/format.h>

#include <map>

#include "gossip/job_settings.hpp"

namespace gossamer::daemon {

void JobOptions::set_own(const GossipOptions& own) {
  own_ = own;
  follow(settings_);
}

void JobOptions::follow(const JobSettings& settings) {
  settings_ = settings;
  const auto options = with_settings(own_, settings.values);
  objection_ = options ? "" : options.error();
  if (options) options_ = *options;
}

JobSettings JobOptions::with(const std::vector<JobSetting>& changes, const NodeId& author) const {
  std::map<std::string, std::string> values;
  for (const JobSetting& setting : settings_.values)
    values[setting.name] = setting.value;
  for (const JobSetting& change : changes)
    values[change.name] = change.value;
  std::erase_if(values, [](const auto& item) { return item.second.empty(); });
  JobSettings next{.version = settings_.version + 1, .author = author};
  for (const auto& [name, value] : values)
    next.values.push_back({name, value});
  return next;
}

std::expected<JobSettings, std::string> JobOptions::changed(const std::vector<JobSetting>& changes,
                                                            const NodeId& author) const {
  for (const JobSetting& change : changes) {
    if (change.value.size() > max_setting_value_bytes)
      return std::unexpected(fmt::format("{}: at most {} bytes are allowed", change.name, max_setting_value_bytes));
  }
  JobSettings next = with(changes, author);
  if (next.values == settings_.values) return settings_;
  if (const auto options = with_settings(own_, next.values); !options) return std::unexpected(options.error());
  if (next.version > max_settings_version)
    return std::unexpected("they have been changed too often: start the job under another name");
  if (const auto fault = fault_of(next)) return std::unexpected(std::string(*fault));
  return next;
}

std::expected<void, AttachRefusal> JobOptions::check(const ClientMemory& client) const {
  if (const auto next = changed(client.settings(), {}); !next)
    return cannot_attach(layout::AttachStatus::bad_layout, "the settings given to the job: " + next.error());
  return {};
}

}  // namespace gossamer::daemon
