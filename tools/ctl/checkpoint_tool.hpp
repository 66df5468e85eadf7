// gossamerctl's commands for checkpoints: checkpoint, export, import.
//
// main makes this object and parses the command line with it. checkpoint and export of a job wait until the daemon has
// written its model to the disk; export --mean reads and writes files and needs no daemon. Blocks.

#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ctl/control_client.hpp"

namespace gossamer::ctl {

inline constexpr std::chrono::milliseconds checkpoint_poll{50};

class CheckpointTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  explicit CheckpointTool(CLI::App& app);
  CheckpointTool(const CheckpointTool&) = delete;
  CheckpointTool& operator=(const CheckpointTool&) = delete;

  [[nodiscard]] bool chosen() const { return static_cast<bool>(action_); }
  /// The text to print: JSON, or words.
  [[nodiscard]] std::expected<std::string, ControlError> run(const Ask& ask, bool as_json, bool colour);

 private:
  using Result = std::expected<nlohmann::json, ControlError>;
  void add_checkpoint(CLI::App& app);
  void add_export(CLI::App& app);
  void add_import(CLI::App& app);
  [[nodiscard]] Result write_checkpoint(const Ask& ask) const;
  [[nodiscard]] Result export_job(const Ask& ask) const;
  [[nodiscard]] Result export_mean() const;
  [[nodiscard]] Result import_file(const Ask& ask) const;

  std::function<Result(const Ask&)> action_;  // action of the chosen command
  std::string job_;
  std::string file_;
  std::vector<std::string> mean_;
  std::string output_;
  std::optional<std::uint64_t> clock_;
};

}  // namespace gossamer::ctl
