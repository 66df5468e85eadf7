// gossamerctl top: the live view in a terminal. It blocks until it is ended, and owns the terminal until then.

#pragma once

#include <CLI/CLI.hpp>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/ctl/control_client.hpp"

namespace gossamer::ctl {

class TopTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const std::string& command)>;

  explicit TopTool(CLI::App& app);
  TopTool(const TopTool&) = delete;
  TopTool& operator=(const TopTool&) = delete;

  [[nodiscard]] bool chosen() const { return chosen_; }
  /// In a terminal it runs until q, Ctrl-C or a signal, and waits for a daemon that does not answer. Elsewhere, and as
  /// JSON, it writes as many screens or lines as --frames says (1 by default), and a daemon that does not answer is an
  /// error.
  [[nodiscard]] std::expected<void, ControlError> run(const Ask& ask, bool as_json, bool colour) const;

 private:
  bool chosen_ = false;
  double interval_s_ = 1;
  unsigned frames_ = 0;
};

}  // namespace gossamer::ctl
