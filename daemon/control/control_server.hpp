// The Unix socket at which gossamerctl and other local programs ask: one JSON object on a line, one JSON object on a
// line back, as often as the connection lasts.
//
// Everything runs on the loop's thread; the handler answers at once. Invariants: at most max_control_clients
// connections, each with at most one line of max_control_line_bytes in memory and at most control_timeout between two
// complete lines. No user's requests take more than a tenth of the loop's time: the next one waits as long as it must.
// What cannot be understood is answered {"error": "..."}.

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "daemon/system/caller.hpp"

namespace gossamer::daemon {

inline constexpr std::size_t max_control_clients = 32;
inline constexpr std::size_t max_control_line_bytes = 64 * 1024;
inline constexpr std::chrono::milliseconds default_control_timeout{10'000};
/// After a request its user's next one waits so many times the processor time that the answer took. While the machine
/// stands still, or others have the processor, no user waits for that.
inline constexpr int control_rest = 9;

/// Gets a JSON object with a string "command", and the process that has sent it; returns an object.
using ControlHandler = std::function<nlohmann::json(const nlohmann::json& request, const Caller& caller)>;

/// Answers one line with one line. Exceptions of the JSON library become answers with an error.
[[nodiscard]] std::string control_answer(std::string_view line, const ControlHandler& handler, const Caller& caller);

class ControlServer {
 public:
  /// Binds and begins to accept. `loop` and `log` outlive the server. An error says what to do.
  [[nodiscard]] static std::expected<std::unique_ptr<ControlServer>, std::string> open(
      asio::io_context& loop, const std::filesystem::path& socket, ControlHandler handler, spdlog::logger& log,
      std::chrono::milliseconds timeout = default_control_timeout);
  /// Closes everything; not to be called from inside the handler.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  [[nodiscard]] std::size_t clients() const;

 private:
  class Core;
  explicit ControlServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  std::shared_ptr<Core> core_;  // handlers under way hold it weakly
};

}  // namespace gossamer::daemon
