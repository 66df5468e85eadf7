// gossamerctl's commands that change the cluster, or show what its members agree on: deny, allow, denials, key, invite,
// join.
//
// main makes this object and parses the command line with it. Blocks until the daemon answers; join blocks until the
// daemon has joined or failed.

#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ctl/control_client.hpp"

namespace gossamer::ctl {

/// This is longer than the daemon tries (peer/links/claim_attempt.hpp).
inline constexpr std::chrono::seconds join_timeout{90};
inline constexpr std::chrono::milliseconds join_poll{100};
/// No invitation is longer.
inline constexpr std::size_t max_line_bytes = 8192;

class ClusterTool {
 public:
  using Ask = std::function<std::expected<nlohmann::json, ControlError>(const nlohmann::json& request)>;

  explicit ClusterTool(CLI::App& app);
  ClusterTool(const ClusterTool&) = delete;
  ClusterTool& operator=(const ClusterTool&) = delete;

  [[nodiscard]] bool chosen() const { return !request_.is_null(); }
  /// The text to print: the daemon's answer as JSON, or words.
  [[nodiscard]] std::expected<std::string, ControlError> run(const Ask& ask, bool as_json, bool colour);

 private:
  void add_denials(CLI::App& app);
  void add_keys(CLI::App& app);
  void add_invitations(CLI::App& app);
  [[nodiscard]] std::expected<nlohmann::json, ControlError> wait_for_join(const Ask& ask) const;
  [[nodiscard]] std::string words(const nlohmann::json& answer, bool colour) const;

  nlohmann::json request_;  // request of the chosen command
  std::string node_;
  std::string reason_;
  std::string fingerprint_;
  std::string expires_ = "24h";
  std::vector<std::string> addresses_;
  std::string line_;
};

/// Converts "90s", "30m", "24h" or "7d" to seconds; nothing for any other text.
[[nodiscard]] std::optional<std::int64_t> seconds_of(const std::string& text);

}  // namespace gossamer::ctl
