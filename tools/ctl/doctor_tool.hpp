// gossamerctl doctor: looks at the machine and asks the daemon, and prints what tools/ctl/doctor.hpp makes of it.
//
// Made in main. Reads files below /proc and /sys, tries the daemon's port, and blocks for a few seconds at most.
// Without a daemon it looks at what is left.

#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/ctl/control_client.hpp"
#include "tools/ctl/doctor.hpp"

namespace gossamer::ctl {

class DoctorTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  /// Adds the subcommand. The object outlives the parsing.
  explicit DoctorTool(CLI::App& app);
  DoctorTool(const DoctorTool&) = delete;
  DoctorTool& operator=(const DoctorTool&) = delete;

  [[nodiscard]] bool chosen() const { return command_->parsed(); }
  [[nodiscard]] std::vector<Finding> run(const Ask& ask) const;

 private:
  CLI::App* command_;
  std::string state_dir_;
};

/// What this process can see of the machine it runs on.
[[nodiscard]] MachineFacts machine_facts();

}  // namespace gossamer::ctl
