// The commands of the control socket: a table with a row for each, which says who may give it and what answers it.
// Shell, Node and ClusterCommands each have rows; the shell puts them together. All calls come from the loop's thread.
//
// Invariant: a command that has no row is refused.

#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace gossamer::daemon {

/// Who may give a command. Owners are root and the user that gossamerd runs as: they may change things, and see
/// secrets. Whom [rights] names may steer the job that is the request's "job".
enum class CommandFor { owners, steerers, everyone };

struct ControlCommand {
  const char* name;
  CommandFor whom;
  /// Gets the whole request; returns an object, which is {"error": "..."} for what cannot be done.
  std::function<nlohmann::json(const nlohmann::json& request)> answer;
};

/// Answers a request that has a string "command". `may`: whether its sender is among these.
[[nodiscard]] nlohmann::json answer_from(const std::vector<ControlCommand>& table, const nlohmann::json& request,
                                         const std::function<bool(CommandFor)>& may);

}  // namespace gossamer::daemon
