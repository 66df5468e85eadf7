// The HTTP server: what is a request, what is not, and clients that mean harm.

#include "daemon/system/http_server.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <random>

#include "sdk/layout/file_descriptor.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using namespace std::chrono_literals;

namespace {

HttpReply echo(std::string_view path) {
  if (path == "/big") return text_reply(200, std::string(4u << 20, 'b'));
  return text_reply(path == "/none" ? 404 : 200, std::string(path));
}

std::string get(std::string_view path, std::string_view host = "127.0.0.1:9746") {
  return std::string("GET ").append(path).append(" HTTP/1.1\r\nHost: ").append(host).append("\r\n\r\n");
}

struct Serving {
  explicit Serving(std::chrono::milliseconds timeout = 20s) {
    auto opened = HttpServer::open(loop, "127.0.0.1:0", echo, log.logger, timeout);
    REQUIRE(opened);
    server = std::move(*opened);
  }

  [[nodiscard]] gossamer::FileDescriptor connect() const {
    gossamer::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server->endpoint().port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0);
    return socket;
  }

  /// Returns what the server sends until it closes.
  [[nodiscard]] std::string rest(const gossamer::FileDescriptor& socket) {
    std::string text;
    REQUIRE(test::run_until(loop, [&] {
      std::array<char, 65536> part;
      ssize_t got = 0;
      while ((got = ::recv(socket.get(), part.data(), part.size(), 0)) > 0)
        text.append(part.data(), static_cast<std::size_t>(got));
      return got == 0 || errno != EAGAIN;
    }));
    return text;
  }

  [[nodiscard]] std::string ask(std::string_view bytes) {
    const gossamer::FileDescriptor socket = connect();
    (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return rest(socket);
  }

  asio::io_context loop;
  test::TestLog log;
  std::unique_ptr<HttpServer> server;
};

}  // namespace

TEST_CASE("a page is got, whole, and the connection closed") {
  Serving serving;
  const std::string reply = serving.ask(get("/metrics?x=1"));
  CHECK_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n") && Contains("Content-Length: 9\r\n") &&
                        Contains("Content-Security-Policy: default-src 'none'") && Contains("\r\n\r\n/metrics\n"));
  CHECK_THAT(serving.ask(get("/none")), StartsWith("HTTP/1.1 404 "));
  const std::string big = serving.ask(get("/big"));
  CHECK(big.size() - big.find("\r\n\r\n") == 4 + (4u << 20) + 1);
  CHECK(test::run_until(serving.loop, [&] { return serving.server->connections() == 0; }));
}

TEST_CASE("a request may come in pieces, and without its body if only the head is asked for") {
  Serving serving;
  const gossamer::FileDescriptor socket = serving.connect();
  for (const char c : get("/a")) {
    REQUIRE(::send(socket.get(), &c, 1, MSG_NOSIGNAL) == 1);
    serving.loop.poll();
  }
  CHECK_THAT(serving.rest(socket), Contains("\r\n\r\n/a\n"));
  const std::string head = serving.ask("HEAD /a HTTP/1.0\r\n\r\n");
  CHECK_THAT(head, Contains("Content-Length: 3\r\n"));
  CHECK(head.ends_with("\r\n\r\n"));
}

TEST_CASE("what is no HTTP request is answered with what is wrong") {
  const struct {
    std::string request;
    int status;
  } cases[] = {
      {"\r\n\r\n", 400},
      {"GET\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET / HTTP/1.1 \r\nHost: localhost\r\n\r\n", 400},
      {"GET http://elsewhere/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505},
      {"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
      {std::string("\0\xff\x16\x03", 4) + "\r\n\r\n", 400},
  };
  for (const auto& one : cases) {
    CAPTURE(one.request);
    CHECK(http_answer(one.request, echo).reply.status == one.status);
  }
}

TEST_CASE("a page is given to whoever typed its address, and to no name that was made to point here") {
  for (const char* host : {"127.0.0.1:9746", "127.0.0.1", "[::1]:9746", "localhost:9746", "LocalHost", "10.0.0.1"}) {
    CAPTURE(host);
    CHECK(http_answer(get("/", host), echo).reply.status == 200);
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example:9746", "[", "[]", "127.0.0.1.evil.example"}) {
    CAPTURE(host);
    CHECK(http_answer(get("/", host), echo).reply.status == 403);
  }
}

TEST_CASE("a request that does not end is too large at some point, and the answer says so") {
  Serving serving;
  CHECK_THAT(serving.ask("GET / HTTP/1.1\r\nX: " + std::string(3 * max_http_request_bytes, 'x')),
             StartsWith("HTTP/1.1 431 "));
  CHECK(test::run_until(serving.loop, [&] { return serving.server->connections() == 0; }));
}

TEST_CASE("a browser that stands still is closed after the timeout") {
  Serving serving(50ms);
  const gossamer::FileDescriptor silent = serving.connect();
  const gossamer::FileDescriptor slow = serving.connect();
  REQUIRE(::send(slow.get(), "GET ", 4, MSG_NOSIGNAL) == 4);
  const gossamer::FileDescriptor never_reads = serving.connect();
  const std::string request = get("/big");
  REQUIRE(::send(never_reads.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  REQUIRE(test::run_until(serving.loop, [&] { return serving.server->connections() == 3; }));
  CHECK(test::run_until(serving.loop, [&] { return serving.server->connections() == 0; }));
}

TEST_CASE("connections that say nothing make way for new ones") {
  Serving serving;
  std::vector<gossamer::FileDescriptor> silent;
  for (std::size_t i = 0; i < 2 * max_http_connections; ++i) {
    silent.push_back(serving.connect());
    serving.loop.poll();
  }
  CHECK_THAT(serving.ask(get("/a")), StartsWith("HTTP/1.1 200 "));
  CHECK(serving.server->connections() <= max_http_connections);
}

TEST_CASE("only so many connections a second are taken, the others wait") {
  Serving serving;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 2 * max_http_accepts_per_s + 1; ++i)
    REQUIRE_THAT(serving.ask(get("/a")), StartsWith("HTTP/1.1 200 "));
  CHECK(std::chrono::steady_clock::now() - begin >= 1s);
}

TEST_CASE("garbage sent to the HTTP server is survived") {
  Serving serving;
  std::mt19937 random(7);
  for (int i = 0; i < 150; ++i) {
    std::string bytes = i % 3 == 0 ? "" : get("/a");
    for (int change = 0; change < 8; ++change) {
      const auto at = static_cast<std::ptrdiff_t>(random() % (bytes.size() + 1));
      bytes.insert(bytes.begin() + at, static_cast<char>(random() % 256));
    }
    const gossamer::FileDescriptor socket = serving.connect();
    (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    (void)::shutdown(socket.get(), SHUT_WR);
    const std::string reply = serving.rest(socket);
    CHECK((reply.empty() || reply.starts_with("HTTP/1.1 ")));
  }
  CHECK_THAT(serving.ask(get("/a")), StartsWith("HTTP/1.1 200 "));
  // No answer is ever out of bounds, whatever the bytes.
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = get("/a");
    for (int change = 0; change < 4; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    const int status = http_answer(bytes, echo).reply.status;
    CHECK((status == 200 || (status >= 400 && status <= 505)));
  }
}

TEST_CASE("only addresses of this machine alone are listened on") {
  for (const char* text : {"127.0.0.1:9746", "127.8.9.1:1", "[::1]:0", "localhost:80"})
    CHECK(loopback_endpoint(text));
  for (const char* text : {"0.0.0.0:9746", "*:9746", "[::]:9746", "192.168.1.2:9746", "example.org:80"}) {
    const auto refused = loopback_endpoint(text);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error(), Contains("proxy"));
  }
  for (const char* text : {"", "9746", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "[::1:1"}) {
    const auto refused = loopback_endpoint(text);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error(), Contains("is no address"));
  }
}

TEST_CASE("an address that is taken is said to be") {
  Serving serving;
  const auto second = HttpServer::open(serving.loop, "127.0.0.1:" + std::to_string(serving.server->endpoint().port()),
                                       echo, serving.log.logger);
  REQUIRE_FALSE(second);
  CHECK_THAT(second.error(), Contains("[metrics] listen"));
}
