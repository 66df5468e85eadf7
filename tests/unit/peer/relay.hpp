// A relay between two overlays of a test. It passes their bytes on, and can be slow or silent, change bytes, or take
// away the mark of sealed bulk.

#pragma once

#include <netinet/in.h>
#include <netinet/ip.h>

#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <functional>

#include "peer/links/dialling.hpp"
#include "tests/unit/peer/cluster.hpp"

namespace gossamer::peer::test {

/// A relay between two nodes. It can be made silent without closing it: as a whole, or for one connection. Connections
/// are numbered in the order in which they are made.
class Relay {
 public:
  explicit Relay(asio::io_context& loop) : loop_(loop), acceptor_(loop, {asio::ip::address_v4::loopback(), 0}) {
    accept();
  }
  void lead_to(std::uint16_t port) { target_ = {asio::ip::address_v4::loopback(), port}; }
  [[nodiscard]] std::string address() const {
    return "tcp://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  bool silent = false;
  std::chrono::milliseconds delay{0};  ///< of each piece, in each direction
  std::optional<int> silent_connection;
  /// Whether a connection, by its number, keeps the mark of sealed bulk. By default none does, as in a network that
  /// takes the mark away.
  std::function<bool(int)> keeps_mark = [](int) { return false; };
  /// An attacker on the way: gets a connection's number, whether the bytes go to the listener, and the bytes. It may
  /// change them, and says what becomes of them, or that the connection ends, or is reset.
  enum class Fate { passes, is_lost, ends, is_reset };
  std::function<Fate(int, bool, std::span<char>)> tamper;
  [[nodiscard]] int connections() const { return connections_; }

 private:
  struct Flow : std::enable_shared_from_this<Flow> {
    Flow(Relay& relay, asio::ip::tcp::socket in)
        : owner(relay), number(relay.connections_++), a(std::move(in)), b(relay.loop_) {}
    void pump(asio::ip::tcp::socket& from, asio::ip::tcp::socket& to, std::vector<char>& buffer) {
      from.async_read_some(asio::buffer(buffer), [self = shared_from_this(), &from, &to, &buffer](auto error, auto n) {
        if (error) return self->close();
        const bool lost = self->owner.silent || self->owner.silent_connection == self->number;
        Fate fate = lost ? Fate::is_lost : Fate::passes;
        if (!lost && self->owner.tamper)
          fate = self->owner.tamper(self->number, &from == &self->a, std::span(buffer).first(n));
        if (fate == Fate::is_reset) self->a.set_option(asio::socket_base::linger(true, 0));
        if (fate == Fate::ends || fate == Fate::is_reset) return self->close();
        const auto timer = std::make_shared<asio::steady_timer>(self->owner.loop_, self->owner.delay);
        timer->async_wait([self, timer, fate, n, &from, &to, &buffer](auto) {
          asio::error_code failed;
          if (fate == Fate::passes) asio::write(to, asio::buffer(buffer.data(), n), failed);
          if (failed) return self->close();
          self->pump(from, to, buffer);
        });
      });
    }
    void close() {
      asio::error_code ignored;
      a.close(ignored);
      b.close(ignored);
    }
    Relay& owner;
    int number;
    asio::ip::tcp::socket a, b;
    std::vector<char> up = std::vector<char>(65536), down = std::vector<char>(65536);
  };

  using TypeOfService = asio::detail::socket_option::integer<IPPROTO_IP, IP_TOS>;

  void accept() {
    acceptor_.async_accept([this](auto error, asio::ip::tcp::socket socket) {
      if (error) return;
      auto flow = std::make_shared<Flow>(*this, std::move(socket));
      flow->b.open(asio::ip::tcp::v4());
      if (keeps_mark(flow->number)) flow->b.set_option(TypeOfService(sealed_bulk_mark));
      flow->b.connect(target_, error);
      if (!error) {
        flow->pump(flow->a, flow->b, flow->up);
        flow->pump(flow->b, flow->a, flow->down);
      }
      accept();
    });
  }

  asio::io_context& loop_;
  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::endpoint target_;
  int connections_ = 0;
};

inline std::uint16_t port_of(const Node& node) {
  const std::string address = node.overlay->address();
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

/// Two nodes that are connected through the relay only.
inline std::pair<std::unique_ptr<Node>, std::unique_ptr<Node>> started_apart(asio::io_context& loop,
                                                                             const ClusterKeys& keys,
                                                                             OverlaySettings options, Relay& relay) {
  options.advertise = relay.address();
  auto a = Node::started(loop, keys, options);
  relay.lead_to(port_of(*a));
  options.peers = {relay.address()};
  options.advertise = "none";
  auto b = Node::started(loop, keys, options);
  return {std::move(a), std::move(b)};
}

}  // namespace gossamer::peer::test
