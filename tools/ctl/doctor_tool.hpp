// gossamerctl doctor looks at the machine, asks the daemon, and prints the findings of tools/ctl/doctor.hpp.
//
// Made in main. It reads files below /proc and /sys, tries the daemon's port, and blocks for a few seconds at most.
// Without a daemon it looks only at the machine.

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

  explicit DoctorTool(CLI::App& app);
  DoctorTool(const DoctorTool&) = delete;
  DoctorTool& operator=(const DoctorTool&) = delete;

  [[nodiscard]] bool chosen() const { return command_->parsed(); }
  [[nodiscard]] std::vector<Finding> run(const Ask& ask) const;

 private:
  CLI::App* command_;
  std::string state_dir_;
};

/// The facts that this process can see of its machine.
[[nodiscard]] MachineFacts machine_facts();

}  // namespace gossamer::ctl
