// Connections and requests of http_server.hpp.

#include "daemon/system/http_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <asio/buffer.hpp>
#include <asio/ip/address.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <map>
#include <utility>

#include "daemon/system/accepting.hpp"
#include "gossip/plain_text.hpp"
#include "peer/address.hpp"

namespace gossamer::daemon {
namespace {

using asio::ip::tcp;

constexpr std::chrono::seconds accept_window{1};
/// After an answer, up to this many bytes are read and thrown away, so that a client that is still sending can read the
/// answer.
constexpr std::size_t max_drained_bytes = 1u << 20;
constexpr std::string_view end_of_request = "\r\n\r\n";
/// The page loads nothing from elsewhere and has nothing inline, and no other page may frame it or load parts of it.
constexpr const char* fixed_headers =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

const char* reason_of(int status) {
  static constexpr std::pair<int, const char*> reasons[] = {{200, "OK"},
                                                            {400, "Bad Request"},
                                                            {403, "Forbidden"},
                                                            {404, "Not Found"},
                                                            {405, "Method Not Allowed"},
                                                            {431, "Request Header Fields Too Large"},
                                                            {505, "HTTP Version Not Supported"}};
  const auto found = std::ranges::find(reasons, status, [](const auto& reason) { return reason.first; });
  return found == std::end(reasons) ? "Internal Server Error" : found->second;
}

std::string header_of(const HttpReply& reply) {
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}{}\r\n", reply.status,
                     reason_of(reply.status), reply.type, reply.body ? reply.body->size() : 0,
                     reply.status == 405 ? "Allow: GET, HEAD\r\n" : "", fixed_headers);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view take_until(std::string_view& rest, std::string_view separator) {
  const std::size_t at = rest.find(separator);
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + separator.size());
  return part;
}

/// Whether a Host header is an IP address or localhost, and so not a name that a web page may have.
bool is_local_host(std::string_view host) {
  std::string_view name = host;
  if (host.starts_with('[')) {
    name.remove_prefix(1);
    name = take_until(name, "]");
  } else {
    name = take_until(name, ":");
  }
  if (same_name(name, "localhost")) return true;
  std::error_code error;
  (void)asio::ip::make_address(std::string(name), error);
  return !error;
}

}  // namespace

HttpReply text_reply(int status, std::string text) {
  return {.status = status, .body = std::make_shared<const std::string>(std::move(text) + "\n")};
}

std::expected<tcp::endpoint, std::string> loopback_endpoint(std::string_view text) {
  const auto parsed = peer::parse_address(text, peer::AddressUse::listen);
  if (!parsed)
    return std::unexpected(
        fmt::format("\"{}\" is no address; a port of this machine is expected, like "
                    "\"127.0.0.1:9746\", or \"\" for none",
                    text));
  std::error_code error;
  const asio::ip::address address =
      asio::ip::make_address(parsed->host == "localhost" ? "127.0.0.1" : parsed->host, error);
  if (error || !address.is_loopback()) {
    return std::unexpected(fmt::format(
        "\"{}\" is not of this machine alone, and what is served there is neither encrypted nor protected by a "
        "password; listen on 127.0.0.1:{} and reach it by an SSH tunnel, a reverse proxy or a collector on this "
        "machine",
        text, parsed->port));
  }
  return tcp::endpoint(address, parsed->port);
}

HttpAnswer http_answer(std::string_view request, const HttpHandler& handler) {
  std::string_view rest = request.substr(0, request.find(end_of_request));
  std::string_view line = take_until(rest, "\r\n");
  const std::string_view method = take_until(line, " ");
  const std::string_view target = take_until(line, " ");
  if (!target.starts_with('/') || !line.starts_with("HTTP/") || line.find(' ') != std::string_view::npos)
    return {text_reply(400, "this is no HTTP request: GET /PATH HTTP/1.1 is expected")};
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return {text_reply(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")};

  std::size_t hosts = 0;
  std::string_view host;
  while (!rest.empty()) {
    std::string_view field = take_until(rest, "\r\n");
    const std::string_view name = take_until(field, ":");
    if (!same_name(name, "host")) continue;
    host = trimmed(field, " \t");
    ++hosts;
  }
  if (hosts > 1 || (hosts == 0 && line == "HTTP/1.1"))
    return {text_reply(400, "a request has one header \"Host\": set it to the address of this page")};
  if (hosts == 1 && !is_local_host(host)) {
    return {text_reply(403,
                       "this page answers to its address, or to localhost, and not to other names; a proxy in front of "
                       "it has to set the header \"Host\" to 127.0.0.1")};
  }
  if (method != "GET" && method != "HEAD") return {text_reply(405, "there is nothing here but to GET")};
  return {handler(target.substr(0, target.find('?'))), method == "HEAD"};
}

class HttpServer::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(asio::io_context& loop, tcp::acceptor acceptor, HttpHandler handler, spdlog::logger& log,
       std::chrono::milliseconds timeout)
      : acceptor_(std::move(acceptor)), handler_(std::move(handler)), log_(log), timeout_(timeout), retry_(loop) {}

  void accept();
  void stop();
  [[nodiscard]] tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }

 private:
  /// The operation under way keeps the connection in memory. No further operation begins after close().
  struct Connection {
    explicit Connection(tcp::socket&& accepted) : socket(std::move(accepted)), deadline(socket.get_executor()) {}
    tcp::socket socket;
    asio::steady_timer deadline;
    std::string input;
    std::string header;
    HttpReply reply;
    std::size_t drained_bytes = 0;
  };
  using Held = std::shared_ptr<Connection>;

  /// A handler that acts only while this object exists and the connection is open.
  template <class Action>
  auto on(Held connection, Action action) {
    return [weak = weak_from_this(), connection = std::move(connection), action = std::move(action)](
               std::error_code error, std::size_t size = 0) {
      const std::shared_ptr<Core> self = weak.lock();
      if (self && connection->socket.is_open()) action(*self, connection, error, size);
    };
  }
  void accept_again_in(std::chrono::steady_clock::duration wait);
  void take(tcp::socket&& socket);
  void send(const Held& connection, HttpAnswer&& answer);
  void drain(const Held& connection);
  void close(const Held& connection);

  tcp::acceptor acceptor_;
  const HttpHandler handler_;
  spdlog::logger& log_;
  const std::chrono::milliseconds timeout_;
  asio::steady_timer retry_;
  std::chrono::steady_clock::time_point window_ends_{};
  int accepted_in_window_ = 0;
  std::map<std::uint64_t, Held> connections_;  // by number, so oldest first; at most max_http_connections
  std::uint64_t next_number_ = 1;
};

void HttpServer::Core::accept() {
  const auto now = std::chrono::steady_clock::now();
  if (now >= window_ends_) {
    window_ends_ = now + accept_window;
    accepted_in_window_ = 0;
  }
  if (accepted_in_window_ >= max_http_accepts_per_s) return accept_again_in(window_ends_ - now);
  acceptor_.async_accept([weak = weak_from_this()](std::error_code error, tcp::socket socket) {
    const std::shared_ptr<Core> self = weak.lock();
    if (!self || !self->acceptor_.is_open()) return;
    if (error && error != asio::error::connection_aborted) {
      self->log_.error("cannot accept a connection to the status page: {}; trying again", error.message());
      return self->accept_again_in(accept_retry);
    }
    if (!error) self->take(std::move(socket));
    self->accept();
  });
}

void HttpServer::Core::accept_again_in(std::chrono::steady_clock::duration wait) {
  retry_.expires_after(wait);
  retry_.async_wait([weak = weak_from_this()](std::error_code error) {
    const std::shared_ptr<Core> self = weak.lock();
    if (self && !error && self->acceptor_.is_open()) self->accept();
  });
}

void HttpServer::Core::take(tcp::socket&& socket) {
  ++accepted_in_window_;
  if (connections_.size() >= max_http_connections) close(Held(connections_.begin()->second));
  const Held connection = std::make_shared<Connection>(std::move(socket));
  connections_.emplace(next_number_++, connection);
  connection->deadline.expires_after(timeout_);
  connection->deadline.async_wait(on(connection, [](Core& self, const Held& late, std::error_code error, std::size_t) {
    if (!error) self.close(late);
  }));
  asio::async_read_until(
      connection->socket, asio::dynamic_buffer(connection->input, max_http_request_bytes), end_of_request,
      on(connection, [](Core& self, const Held& asking, std::error_code error, std::size_t size) {
        if (!error)
          return self.send(asking, http_answer(std::string_view(asking->input).substr(0, size), self.handler_));
        if (error != asio::error::not_found) return self.close(asking);  // the other end has gone
        self.send(asking,
                  {text_reply(431, fmt::format("a request here has at most {} bytes", max_http_request_bytes))});
      }));
}

void HttpServer::Core::send(const Held& connection, HttpAnswer&& answer) {
  connection->reply = std::move(answer.reply);
  connection->header = header_of(connection->reply);
  const bool with_body = !answer.head && connection->reply.body;
  const std::array<asio::const_buffer, 2> parts = {
      asio::buffer(connection->header), with_body ? asio::buffer(*connection->reply.body) : asio::const_buffer()};
  asio::async_write(connection->socket, parts,
                    on(connection, [](Core& self, const Held& sent, std::error_code error, std::size_t) {
                      if (error) return self.close(sent);
                      std::error_code ignored;
                      sent->socket.shutdown(tcp::socket::shutdown_send, ignored);
                      self.drain(sent);
                    }));
}

/// Reads on after the answer: closing a socket with unread bytes would reset the connection and lose the answer.
void HttpServer::Core::drain(const Held& connection) {
  connection->input.resize(max_http_request_bytes);
  connection->socket.async_read_some(
      asio::buffer(connection->input),
      on(connection, [](Core& self, const Held& drained, std::error_code error, std::size_t size) {
        drained->drained_bytes += size;
        if (error || drained->drained_bytes > max_drained_bytes) return self.close(drained);
        self.drain(drained);
      }));
}

void HttpServer::Core::close(const Held& connection) {
  std::erase_if(connections_, [&](const auto& item) { return item.second == connection; });
  std::error_code ignored;
  connection->socket.close(ignored);
  connection->deadline.cancel();
}

void HttpServer::Core::stop() {
  std::error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  while (!connections_.empty())
    close(Held(connections_.begin()->second));
}

std::expected<std::unique_ptr<HttpServer>, std::string> HttpServer::open(asio::io_context& loop,
                                                                         const std::string& listen, HttpHandler handler,
                                                                         spdlog::logger& log,
                                                                         std::chrono::milliseconds timeout) {
  const auto endpoint = loopback_endpoint(listen);
  if (!endpoint) return std::unexpected(endpoint.error());
  tcp::acceptor acceptor(loop);
  std::error_code error;
  acceptor.open(endpoint->protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(*endpoint, error);
  if (!error) acceptor.listen(static_cast<int>(max_http_connections), error);
  if (error) {
    return std::unexpected(fmt::format(
        "{} cannot be listened on: {}; if another gossamerd has it, give this one another [metrics] listen, or \"\"",
        listen, error.message()));
  }
  auto core = std::make_shared<Core>(loop, std::move(acceptor), std::move(handler), log, timeout);
  core->accept();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

HttpServer::~HttpServer() {
  core_->stop();
}
tcp::endpoint HttpServer::endpoint() const {
  return core_->endpoint();
}
std::size_t HttpServer::connections() const {
  return core_->connections();
}

}  // namespace gossamer::daemon
