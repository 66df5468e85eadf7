// gossamerctl's commands that change what this node does: drain, leave.
//
// main makes this object and parses the command line with it. Blocks until the daemon answers; leave blocks until the
// daemon has ended.

#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/ctl/control_client.hpp"

namespace gossamer::ctl {

/// A leaving daemon may take this long beyond its time, to stop.
inline constexpr std::chrono::seconds leave_margin{8};
inline constexpr std::chrono::milliseconds leave_poll{50};

class NodeTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  explicit NodeTool(CLI::App& app);
  NodeTool(const NodeTool&) = delete;
  NodeTool& operator=(const NodeTool&) = delete;

  [[nodiscard]] bool chosen() const { return !request_.is_null(); }
  /// The text to print: the daemon's answer as JSON, or words.
  [[nodiscard]] std::expected<std::string, ControlError> run(const Ask& ask, bool as_json, bool colour);

 private:
  [[nodiscard]] std::expected<nlohmann::json, ControlError> wait_for_end(const Ask& ask) const;

  nlohmann::json request_;  // request of the chosen command
  bool off_ = false;
  double timeout_s_ = 10;
};

}  // namespace gossamer::ctl
