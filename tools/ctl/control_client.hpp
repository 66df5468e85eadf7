// Asks the daemon over its control socket: one JSON line in each direction. Blocks, for at most answer_timeout.

#pragma once

#include <chrono>
#include <expected>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gossamer::ctl {

inline constexpr std::chrono::seconds answer_timeout{5};
inline constexpr std::size_t max_answer_bytes = 64u << 20;

/// The kind of failure, which decides the exit status.
enum class Failure { no_daemon, bad_answer, wrong_usage };
struct ControlError {
  Failure failure;
  std::string message;  ///< for people, with what to do
};

/// The error for a request that has failed, or for an answer that cannot be used.
[[nodiscard]] inline std::unexpected<ControlError> failure(std::string message) {
  return std::unexpected(ControlError{Failure::bad_answer, std::move(message)});
}
[[nodiscard]] inline std::unexpected<ControlError> wrong_usage(std::string message) {
  return std::unexpected(ControlError{Failure::wrong_usage, std::move(message)});
}

using JsonAnswer = std::expected<nlohmann::json, ControlError>;

/// Sends an object with a string "command" to the first of `sockets` at which a daemon answers. If the list is empty,
/// no daemon has run yet.
[[nodiscard]] JsonAnswer request(const std::vector<std::string>& sockets, const nlohmann::json& request);

}  // namespace gossamer::ctl
