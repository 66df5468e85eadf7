// gossamerctl top: the live view in a terminal. Blocks until it is ended; owns the terminal while it runs.

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

  /// Adds the subcommand. The object outlives the parsing.
  explicit TopTool(CLI::App& app);
  TopTool(const TopTool&) = delete;
  TopTool& operator=(const TopTool&) = delete;

  [[nodiscard]] bool chosen() const { return chosen_; }
  /// In a terminal: until q, Ctrl-C, or a signal asks for the end; a daemon that does not answer is waited for.
  /// Elsewhere, and as JSON: as many screens, or lines, as --frames says (1 unless given), and a daemon that does not
  /// answer is an error.
  [[nodiscard]] std::expected<void, ControlError> run(const Ask& ask, bool as_json, bool colour) const;

 private:
  bool chosen_ = false;
  double interval_s_ = 1;
  unsigned frames_ = 0;
};

}  // namespace gossamer::ctl
