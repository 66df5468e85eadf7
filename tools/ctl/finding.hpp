// The findings of commands that look for causes. Each is one line of text, with what to do about it. Pure.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gossamer::ctl {

enum class Grade : std::uint8_t { ok, warning, problem };

struct Finding {
  Grade grade;
  std::string topic;   ///< for instance "keys" or "links"
  std::string text;    ///< what was found
  std::string advice;  ///< what to do; empty: nothing
};

[[nodiscard]] Finding ok(std::string topic, std::string text);
[[nodiscard]] Finding warning(std::string topic, std::string text, std::string advice);
[[nodiscard]] Finding problem(std::string topic, std::string text, std::string advice);

/// The findings of the daemon's watch about a node and a job, by the daemon's status. An empty `about` means the node
/// itself, an empty `job` its links and the node. The rules and the data of the last minute are the daemon's
/// (daemon/report/watch.hpp).
[[nodiscard]] std::vector<Finding> watched(const nlohmann::json& status, const std::string& about,
                                           const std::string& job);

[[nodiscard]] Grade worst(const std::vector<Finding>& findings);
[[nodiscard]] nlohmann::json as_json(const std::vector<Finding>& findings);
[[nodiscard]] std::string as_text(const std::vector<Finding>& findings, bool colour);

}  // namespace gossamer::ctl
