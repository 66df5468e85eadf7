// gossamerctl explain: looks at the daemon twice and prints what tools/ctl/explain.hpp makes of it. Blocks meanwhile.

#pragma once

#include <CLI/CLI.hpp>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/ctl/control_client.hpp"
#include "tools/ctl/explain.hpp"

namespace gossamer::ctl {

class ExplainTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const std::string& command)>;

  /// Adds the subcommand. The object outlives the parsing.
  explicit ExplainTool(CLI::App& app);
  ExplainTool(const ExplainTool&) = delete;
  ExplainTool& operator=(const ExplainTool&) = delete;

  [[nodiscard]] bool chosen() const { return chosen_; }
  [[nodiscard]] std::expected<std::vector<Finding>, ControlError> run(const Ask& ask) const;

 private:
  bool chosen_ = false;
  std::string node_;
  double seconds_ = 3;
};

}  // namespace gossamer::ctl
