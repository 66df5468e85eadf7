// gossamerctl run: its options, and what each client gets (launcher.hpp starts the clients).
//
// main makes this object and parses the command line with it. run() blocks until the last client has ended.

#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ctl/control_client.hpp"
#include "tools/ctl/run/launcher.hpp"

namespace gossamer::ctl {

class RunTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const std::string& command)>;

  explicit RunTool(CLI::App& app);
  RunTool(const RunTool&) = delete;
  RunTool& operator=(const RunTool&) = delete;

  [[nodiscard]] bool chosen() const { return command_->parsed(); }
  /// Returns the status of the first client that failed for good, or 0. An error means wrong usage, and nothing was
  /// started.
  [[nodiscard]] std::expected<int, std::string> run(const Ask& ask, std::vector<std::string> command) const;

 private:
  [[nodiscard]] std::expected<std::vector<ClientSpec>, std::string> place_clients() const;

  CLI::App* command_;
  std::vector<std::string> without_dashes_;
  std::optional<std::uint32_t> clients_;
  std::optional<std::string> gpus_;
  std::uint32_t per_gpu_ = 1;
  bool bind_ = false;
  std::string restart_ = "never";
  double first_pause_s_ = 1;
  double grace_s_ = 10;
  std::string output_ = "prefix";
  bool fail_fast_ = false;
};

}  // namespace gossamer::ctl
