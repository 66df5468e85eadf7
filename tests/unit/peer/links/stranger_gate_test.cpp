// What the kernel lets come on a connection before it is seen, in a handshake, and once it is admitted.

#include "peer/links/stranger_gate.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <thread>

#include "catch.hpp"
#include "peer/limits.hpp"

using namespace gossamer::peer;
using asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t sent_bytes = 16 << 10;

/// What ZeroMQ sends before it is answered: signature, major version, and the rest.
const std::string signature = std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10);
const std::string version = "\3";
const std::string rest = std::string("\1CURVE") + std::string(47, '\0');

/// A connection to a guarded socket.
struct Guarded {
  /// `extension`: a kind of header for IPv6 that every segment has before TCP's, as IPV6_DSTOPTS, of so many bytes.
  explicit Guarded(const char* address, int extension = 0, std::uint8_t extension_bytes = 0)
      : listening(loop, tcp::endpoint(asio::ip::make_address(address), 0)) {
    guard_connections_of(listening.native_handle());
    sending.open(listening.local_endpoint().protocol());
    if (extension != 0) add_extension(extension, extension_bytes);
    sending.connect(listening.local_endpoint());
    listening.accept(receiving);
    receiving.non_blocking(true);
    sending.non_blocking(true);
    sending.set_option(tcp::no_delay(true));
  }
  void add_extension(int kind, std::uint8_t bytes) {
    // Its length in eights behind the first; then one option, which receivers pass over: its kind, and what it has.
    std::vector<std::uint8_t> header(bytes);
    header[1] = static_cast<std::uint8_t>(bytes / 8 - 1);
    header[2] = 0x1e;
    header[3] = static_cast<std::uint8_t>(bytes - 4);
    const auto size = static_cast<socklen_t>(header.size());
    REQUIRE(::setsockopt(sending.native_handle(), IPPROTO_IPV6, kind, header.data(), size) == 0);
  }
  /// In one segment, if it fits.
  void send(const std::string& text) { REQUIRE(sending.send(asio::buffer(text)) == text.size()); }
  [[nodiscard]] int descriptor() { return receiving.native_handle(); }
  [[nodiscard]] bool wakes_a_reader() {
    pollfd polled{.fd = descriptor(), .events = POLLIN, .revents = 0};
    return ::poll(&polled, 1, 0) > 0;
  }
  [[nodiscard]] std::size_t waiting() const { return receiving.available(); }
  /// How often the other end has sent again what did not come.
  [[nodiscard]] std::uint32_t sent_again() {
    tcp_info info{};
    socklen_t size = sizeof info;
    REQUIRE(::getsockopt(sending.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    return info.tcpi_total_retrans;
  }
  /// Waits until so much has come, and reads it.
  void read(std::size_t bytes) {
    std::string into(bytes, 0);
    std::size_t had = 0;
    wait_until([&] {
      asio::error_code error;
      had += receiving.receive(asio::buffer(into.data(), bytes - had), 0, error);
      return had == bytes;
    });
  }
  template <class Condition>
  static void wait_until(Condition condition) {
    for (const auto end = std::chrono::steady_clock::now() + 20s; !condition(); std::this_thread::sleep_for(1ms))
      REQUIRE(std::chrono::steady_clock::now() < end);
  }

  asio::io_context loop;
  tcp::acceptor listening;
  tcp::socket sending{loop};
  tcp::socket receiving{loop};
};

}  // namespace

TEST_CASE("of who was not seen the kernel takes the parts of a greeting, and nothing else") {
  const auto parts = GENERATE(
      values<std::vector<std::string>>({{signature, version, rest},
                                        {signature, version + rest},
                                        {signature + version, rest},
                                        {signature + version + rest},
                                        {signature, version, std::string("\0PLAIN", 6) + std::string(47, '\0')}}));
  Guarded guarded("127.0.0.1");
  for (const std::string& part : parts)
    guarded.send(part);
  CHECK(guarded.waiting() == unasked_bytes);
  CHECK_FALSE(guarded.wakes_a_reader());

  std::string changed = signature + version + rest;
  changed[GENERATE(0, 1, 5, 9, 12, 17, 31, 63)] ^= 0x20;
  for (const std::string& other :
       {changed, std::string("\4"), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(64, '\0')}) {
    Guarded another("127.0.0.1");
    another.send(other);
    CHECK(another.waiting() == 0);
  }
}

TEST_CASE("the kernel takes a handshake of a stranger that was seen, and all of who is admitted") {
  const char* address = GENERATE("127.0.0.1", "::1");
  Guarded guarded(address);
  guarded.send(std::string(sent_bytes, 'x'));
  CHECK(guarded.waiting() == 0);
  let_handshake(guarded.descriptor());
  guarded.read(max_stranger_bytes + 1);
  let_handshake(guarded.descriptor());  // changes nothing
  Guarded::wait_until([&, before = guarded.sent_again()] { return guarded.sent_again() > before + 1; });
  CHECK(guarded.waiting() == 0);
  let_all(guarded.descriptor());
  guarded.read(sent_bytes - max_stranger_bytes - 1);
}

TEST_CASE("headers of IPv6 before that of TCP do not let more of a stranger come") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root may send such headers");
    return;
  }
  Guarded guarded("::1", GENERATE(IPV6_DSTOPTS, IPV6_HOPOPTS), GENERATE(8, 24, 248));
  let_handshake(guarded.descriptor());
  guarded.send(std::string(sent_bytes, 'x'));
  guarded.read(max_stranger_bytes + 1);
  Guarded::wait_until([&, before = guarded.sent_again()] { return guarded.sent_again() > before + 1; });
  CHECK(guarded.waiting() == 0);
}
