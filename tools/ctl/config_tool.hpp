// gossamerctl config check: finds what is wrong with a configuration, without a running daemon. It runs the daemon's
// program for that.

#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gossamer::ctl {

class ConfigTool {
 public:
  explicit ConfigTool(CLI::App& app);
  ConfigTool(const ConfigTool&) = delete;
  ConfigTool& operator=(const ConfigTool&) = delete;

  [[nodiscard]] bool chosen() const { return chosen_; }
  /// Becomes `gossamerd --check-config`. Returns only if it cannot, and says why.
  [[nodiscard]] std::string run() const;

 private:
  bool chosen_ = false;
  std::string file_;
};

}  // namespace gossamer::ctl
