// gossamerctl explain looks at the daemon twice and prints the findings of tools/ctl/explain.hpp. Blocks until then.

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
