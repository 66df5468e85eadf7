// A listener whose loop does not run, while strangers come.

#include "peer/links/listener.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <asio/ip/tcp.hpp>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using asio::ip::tcp;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t come = 2000;
/// More than are accepted before the loop has seen any.
constexpr std::size_t unseen = 1100;

/// How many connections to this port of loopback wait to be accepted, as proc(5) tells.
std::size_t waiting_at(int port) {
  std::ifstream table("/proc/net/tcp");
  const std::string begin = fmt::format("0100007F:{:04X} 00000000:0000 0A ", port);
  std::size_t waiting = 0;
  for (std::string line; std::getline(table, line);) {
    if (const auto at = line.find(begin); at != std::string::npos)
      waiting += std::stoul(line.substr(line.find(':', at + begin.size()) + 1), nullptr, 16);
  }
  return waiting;
}

}  // namespace

TEST_CASE("a late loop does not let connections pile up, and the listener can change its key and close meanwhile") {
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;
  REQUIRE((::setrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > 3 * come));
  asio::io_context loop;
  zmq::context_t context(1);
  std::size_t ended = 0;
  Listener listener(loop, context,
                    {.arrived = [](Arrival&&) {},
                     .lost_connection = [] {},
                     .handshake_failed = [](const std::string&, HandshakeFailure) {},
                     .denied = [](const NodeId&, const std::string&) {},
                     .closing = [&](const Connections::Closing&) { ++ended; },
                     .now = [] { return TimeUs{0}; }});
  REQUIRE(listener.start({"127.0.0.1", 0}, ClusterKey::generate(), 100, true));
  const int port = listener.address().port;
  asio::io_context theirs;
  std::vector<tcp::socket> strangers;
  for (std::size_t i = 0; i < come; ++i) {
    strangers.emplace_back(theirs, tcp::v4()).native_non_blocking(true);
    const tcp::endpoint to(asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port));
    (void)::connect(strangers.back().native_handle(), to.data(), static_cast<socklen_t>(to.size()));
  }
  const auto full = [&] { return waiting_at(port) > 200; };
  for (const auto end = std::chrono::steady_clock::now() + 20s; !full(); std::this_thread::sleep_for(1ms))
    REQUIRE(std::chrono::steady_clock::now() < end);
  const auto other = ClusterKey::generate();
  CHECK(listener.listen_with(other));
  while (ended < unseen && loop.run_one_for(20s) > 0) {
  }
  CHECK(ended >= unseen);  // ZeroMQ's thread goes on
  listener.close(0);
}
