// gossamerctl config check: what is wrong with a configuration, without a daemon that runs. The daemon's program says
// it.

#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gossamer::ctl {

class ConfigTool {
 public:
  /// Adds the subcommand. The object outlives the parsing.
  explicit ConfigTool(CLI::App& app);
  ConfigTool(const ConfigTool&) = delete;
  ConfigTool& operator=(const ConfigTool&) = delete;

  [[nodiscard]] bool chosen() const { return chosen_; }
  /// Becomes `gossamerd --check-config`. Returns only, and why, if it cannot.
  [[nodiscard]] std::string run() const;

 private:
  bool chosen_ = false;
  std::string file_;
};

}  // namespace gossamer::ctl
