// A small HTTP/1.1 server for the status page and the metrics: one GET for each connection, on addresses of this
// machine only.
//
// Everything runs on the loop's thread; the handler answers at once. Whoever connects may be hostile: a connection has
// max_http_request_bytes for its request and `timeout` for everything; beyond max_http_connections the oldest is
// closed; and at most max_http_accepts_per_s are accepted, so that requests cannot take the loop from gossip. A request
// whose Host is a name other than localhost is refused, because a hostile web page may let its own name point to this
// address in order to read the answers.

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace gossamer::daemon {

inline constexpr std::size_t max_http_connections = 32;
inline constexpr std::size_t max_http_request_bytes = 8 * 1024;
inline constexpr int max_http_accepts_per_s = 200;
inline constexpr std::chrono::milliseconds default_http_timeout{10'000};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;  ///< shared, so that many readers of one answer use one copy; null: empty
};

[[nodiscard]] HttpReply text_reply(int status, std::string text);

/// Gets a path without its query, beginning with '/'.
using HttpHandler = std::function<HttpReply(std::string_view path)>;

/// Parses host:port, where host is an address of this machine alone (127.0.0.0/8, ::1 or localhost). The error says
/// what to do.
[[nodiscard]] std::expected<asio::ip::tcp::endpoint, std::string> loopback_endpoint(std::string_view text);

/// The answer to a request, which includes its empty line: checks it and calls the handler. `head`: the reply goes
/// without its body.
struct HttpAnswer {
  HttpReply reply;
  bool head = false;
};
[[nodiscard]] HttpAnswer http_answer(std::string_view request, const HttpHandler& handler);

class HttpServer {
 public:
  /// Binds and begins to accept. `loop` and `log` outlive the server. An error says what to do.
  [[nodiscard]] static std::expected<std::unique_ptr<HttpServer>, std::string> open(
      asio::io_context& loop, const std::string& listen, HttpHandler handler, spdlog::logger& log,
      std::chrono::milliseconds timeout = default_http_timeout);
  /// Closes everything. It must not be called from inside the handler.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// The endpoint listened on, with the port that the system chose if port 0 was asked for.
  [[nodiscard]] asio::ip::tcp::endpoint endpoint() const;
  [[nodiscard]] std::size_t connections() const;

 private:
  class Core;
  explicit HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  std::shared_ptr<Core> core_;  // pending handlers hold it weakly
};

}  // namespace gossamer::daemon
