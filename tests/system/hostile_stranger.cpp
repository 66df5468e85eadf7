// A stranger who means harm. It holds an invitation, valid or expired, and with it the public half of the key that the
// members listen with. So it can complete handshakes, but no member lets it in. The system tests (stranger_test.py) run
// it against real daemons.
//
//     hostile_stranger ACT COUNT < INVITATION
//
// ACT is `routing-ids`: it claims the numbers that an unseeded ZeroMQ would give to the first COUNT connections, and
// then makes as many without a claim. Or `come-and-go`: COUNT connections, a few at a time, which claim the first
// 1024 of those numbers again and again. Or `hold`: COUNT connections that say nothing, until standard input ends.
// Prints one line of JSON when all connections are made, and one at the end: `secured`, how many handshakes were
// completed so far, and `ended`, how many of the connections the other end has closed.
//
// It has one thread. ZeroMQ's monitors report the state of the connections.

#include <arpa/inet.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "peer/admission/invitation.hpp"

namespace {

using namespace gossamer;
using namespace gossamer::peer;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds patience{20};
constexpr std::chrono::milliseconds poll_step{2};
constexpr int max_connections = 4000;
/// Handshakes under way at once. Many more would all take longer than a daemon allows, on a busy machine.
constexpr int most_handshakes = 16;
/// The number of ROUTER and REP sockets that a daemon may have made before the one that listens, and that one.
constexpr int sockets_before = 4;

class Connection {
 public:
  Connection(zmq::context_t& context, const Identity& identity, const Invitation& invitation,
             const std::string& routing_id, int number)
      : socket_(context, zmq::socket_type::dealer), events_(context, zmq::socket_type::pair) {
    const auto buffer = [](std::span<const std::uint8_t, key_bytes> key) {
      return zmq::const_buffer(key.data(), key.size());
    };
    socket_.set(zmq::sockopt::curve_serverkey, buffer(invitation.listening_key));
    socket_.set(zmq::sockopt::curve_publickey, buffer(identity.keys.public_key));
    socket_.set(zmq::sockopt::curve_secretkey, buffer(identity.keys.secret_key.bytes()));
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::reconnect_ivl, -1);
    if (!routing_id.empty()) {
      // The C++ wrapper is not used, because it would read a claim with a zero byte as a shorter string.
      if (zmq_setsockopt(socket_.handle(), ZMQ_ROUTING_ID, routing_id.data(), routing_id.size()) != 0)
        throw zmq::error_t();
    }
    const std::string endpoint = "inproc://events-" + std::to_string(number);
    if (zmq_socket_monitor(socket_.handle(), endpoint.c_str(), ZMQ_EVENT_ALL) != 0) throw zmq::error_t();
    events_.connect(endpoint);
    socket_.connect(invitation.addresses.front().text());
  }

  /// Without that, ZeroMQ would wait for somebody who receives its events.
  ~Connection() { zmq_socket_monitor(socket_.handle(), nullptr, 0); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void look() {
    zmq::message_t event;
    zmq::message_t address;
    while (events_.recv(event, zmq::recv_flags::dontwait) && events_.recv(address)) {
      std::uint16_t kind = 0;
      std::memcpy(&kind, event.data(), sizeof kind);
      secured = secured || kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
      ended = ended || kind == ZMQ_EVENT_DISCONNECTED || kind == ZMQ_EVENT_CLOSED ||
              kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL ||
              kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    }
  }

  bool secured = false;
  bool ended = false;

 private:
  zmq::socket_t socket_;
  zmq::socket_t events_;
};

class Stranger {
 public:
  explicit Stranger(Invitation invitation) : invitation_(std::move(invitation)) { begin_anew(); }

  void connect(const std::string& routing_id) {
    connections_.push_back(std::make_unique<Connection>(context_, identity_, invitation_, routing_id, made_));
    if (++made_ % most_handshakes == 0) settle();
  }
  /// Waits until each has completed its handshake or was closed; `closed`: until each was closed.
  void settle(bool closed = false) {
    const auto deadline = Clock::now() + patience;
    while (Clock::now() < deadline) {
      bool settled = true;
      for (const auto& connection : connections_) {
        connection->look();
        settled = settled && (connection->ended || (connection->secured && !closed));
      }
      if (settled) return;
      std::this_thread::sleep_for(poll_step);
    }
  }
  /// Closes all, and goes on counting.
  void close() {
    closed_ = count();
    connections_.clear();
  }
  /// ZeroMQ closes descriptors later than sockets. Waits until all are closed.
  void begin_anew() {
    context_ = zmq::context_t();
    context_.set(zmq::ctxopt::max_sockets, 3 * max_connections);
  }
  void report() {
    const Count all = count();
    std::puts(nlohmann::json{{"secured", all.secured}, {"ended", all.ended}}.dump().c_str());
    std::fflush(stdout);
  }

 private:
  struct Count {
    int secured = 0;
    int ended = 0;
  };

  Count count() {
    Count all = closed_;
    for (const auto& connection : connections_) {
      connection->look();
      all.secured += connection->secured ? 1 : 0;
      all.ended += connection->ended ? 1 : 0;
    }
    return all;
  }

  Invitation invitation_;
  Identity identity_ = Identity::generate();
  zmq::context_t context_;
  std::vector<std::unique_ptr<Connection>> connections_;
  int made_ = 0;
  Count closed_;
};

/// The name that ZeroMQ gives to the `n`th connection of a ROUTER whose first random number is `first`.
std::string numbered(std::uint32_t first, std::uint32_t n) {
  const std::uint32_t number = htonl(first + n);
  std::string id(1 + sizeof number, '\0');
  std::memcpy(id.data() + 1, &number, sizeof number);
  return id;
}

/// As libzmq's generate_random() makes it in a process where nobody else has drawn a number.
std::uint32_t first_number() {
  const auto low = static_cast<std::uint32_t>(std::rand());
  const auto high = static_cast<std::uint32_t>(std::rand());
  return high << 31 | low;
}

void claim_routing_ids(Stranger& stranger, int count) {
  for (int socket = 0; socket < sockets_before; ++socket) {
    const std::uint32_t first = first_number();
    for (int n = 0; n < count; ++n)
      stranger.connect(numbered(first, static_cast<std::uint32_t>(n)));
  }
  stranger.settle();
  for (int n = 0; n < count; ++n)
    stranger.connect({});
  stranger.settle();
  stranger.report();
}

void come_and_go(Stranger& stranger, int count) {
  constexpr int names = 64 * most_handshakes;
  const std::uint32_t first = first_number();
  for (int n = 0; n < count; ++n) {
    stranger.connect(numbered(first, static_cast<std::uint32_t>(n % names)));
    if (n % most_handshakes == most_handshakes - 1) stranger.close();
    if (n % names == names - 1) stranger.begin_anew();
  }
  stranger.settle();
}

void hold(Stranger& stranger, int count) {
  for (int n = 0; n < count; ++n)
    stranger.connect({});
  stranger.settle();
  stranger.report();
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  stranger.settle(/*closed=*/true);
}

int fail(const std::string& message) {
  std::fprintf(stderr, "hostile_stranger: %s\n", message.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string act = argc == 3 ? argv[1] : "";
  const int count = argc == 3 ? std::atoi(argv[2]) : 0;
  if (act != "come-and-go" && act != "routing-ids" && act != "hold") return fail("routing-ids | come-and-go | hold");
  if (count < 1 || (act != "come-and-go" && count > max_connections))
    return fail("how many: up to " + std::to_string(max_connections) + " that are there at once");
  std::string line;
  for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n';)
    line += byte;
  auto invitation = parse_invitation(line);
  if (!invitation) return fail(invitation.error());
  Stranger stranger(std::move(*invitation));
  if (act == "routing-ids") {
    claim_routing_ids(stranger, count);
  } else if (act == "come-and-go") {
    come_and_go(stranger, count);
  } else {
    hold(stranger, count);
  }
  stranger.report();
  return 0;
}
