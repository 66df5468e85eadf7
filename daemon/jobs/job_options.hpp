// The options with which this node averages one job: the job's settings, and the node's own options where the settings
// say nothing. Owned by a Job, on the loop's thread.

#pragma once

#include <expected>
#include <string>
#include <vector>

#include "daemon/clients/client_memory.hpp"
#include "daemon/config/config.hpp"

namespace gossamer::daemon {

class JobOptions {
 public:
  explicit JobOptions(const GossipOptions& own) : own_(own), options_(own) {}

  void set_own(const GossipOptions& own);
  /// Takes over the job's settings; these are the newest that this replica has heard of.
  void follow(const JobSettings& settings);

  [[nodiscard]] const GossipOptions& get() const { return options_; }
  [[nodiscard]] const JobSettings& settings() const { return settings_; }
  /// Says why this node cannot follow the settings, so that it keeps out of the job's exchanges. Empty: it can.
  [[nodiscard]] const std::string& objection() const { return objection_; }

  /// The next version of the settings if `author` makes these changes; an empty value removes a setting. An error says
  /// what is wrong with the changes.
  [[nodiscard]] std::expected<JobSettings, std::string> changed(const std::vector<JobSetting>& changes,
                                                                const NodeId& author) const;
  /// The same without checks: this node may be unable to follow these settings.
  [[nodiscard]] JobSettings with(const std::vector<JobSetting>& changes, const NodeId& author) const;
  /// Whether this node could follow the settings that a client gives.
  [[nodiscard]] std::expected<void, AttachRefusal> check(const ClientMemory& client) const;

 private:
  GossipOptions own_;
  GossipOptions options_;
  JobSettings settings_;
  std::string objection_;
};

}  // namespace gossamer::daemon
