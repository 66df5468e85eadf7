// The commands of the control socket: a table with a row for each, which says who may give it and what answers it.
// Shell, Node and ClusterCommands each have rows; the shell puts them together. All calls come from the loop's thread.
//
// Invariant: a command that has no row is refused.

#pragma once

#include <fmt/format.h>

#include <concepts>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gossamer::daemon {

/// Who may give a command. Owners are root and the user that gossamerd runs as: they may change things, and see
/// secrets. Steerers are the users whom [rights] lets steer the job that the request names as "job".
enum class CommandFor { owners, steerers, everyone };

struct ControlCommand {
  const char* name;
  CommandFor whom;
  /// Gets the whole request; returns an object, which is {"error": "..."} for what cannot be done.
  std::function<nlohmann::json(const nlohmann::json& request)> answer;
};

/// Answers a request that has a string "command". `may` says whether its sender is among these people.
[[nodiscard]] nlohmann::json answer_from(const std::vector<ControlCommand>& table, const nlohmann::json& request,
                                         const std::function<bool(CommandFor)>& may);

/// Thrown for a request whose arguments do not fit its command. The sender gets what() as the error.
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the number that a request has under this name, or `otherwise` if it has none. Throws BadRequest if it is not
/// a whole number of this type, which nlohmann's own conversion would silently make of it.
template <std::integral Number>
[[nodiscard]] Number number_in(const nlohmann::json& request, const char* name,
                               std::optional<Number> otherwise = std::nullopt) {
  const auto found = request.find(name);
  if (found == request.end() && otherwise) return *otherwise;
  if (found != request.end()) {
    if (found->is_number_unsigned() && std::in_range<Number>(found->get<std::uint64_t>())) return found->get<Number>();
    if (found->is_number_integer() && std::in_range<Number>(found->get<std::int64_t>())) return found->get<Number>();
  }
  throw BadRequest(fmt::format("\"{}\" is a whole number from {} to {}", name, std::numeric_limits<Number>::min(),
                               std::numeric_limits<Number>::max()));
}

}  // namespace gossamer::daemon
