// gossamerctl's commands that change what this node does: drain, leave.
//
// Made in main, which parses the command line with it. Blocks while the daemon answers; leave until the daemon has
// ended.

#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/ctl/control_client.hpp"

namespace gossamer::ctl {

/// What a leaving daemon may take beyond its time, to stop.
inline constexpr std::chrono::seconds leave_margin{8};
inline constexpr std::chrono::milliseconds leave_poll{50};

class NodeTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  /// Adds the subcommands. The object outlives the parsing.
  explicit NodeTool(CLI::App& app);
  NodeTool(const NodeTool&) = delete;
  NodeTool& operator=(const NodeTool&) = delete;

  /// True if one of these was chosen.
  [[nodiscard]] bool chosen() const { return !request_.is_null(); }
  /// What to print: the daemon's answer as JSON, or words.
  [[nodiscard]] std::expected<std::string, ControlError> run(const Ask& ask, bool as_json, bool colour);

 private:
  [[nodiscard]] std::expected<nlohmann::json, ControlError> wait_for_end(const Ask& ask) const;

  nlohmann::json request_;  // of the chosen command
  bool off_ = false;
  double timeout_s_ = 10;
};

}  // namespace gossamer::ctl
