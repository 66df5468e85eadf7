// Tells a node's port from another program's, by what the port says unasked to whoever connects.
//
// ZeroMQ tells that a handshake has failed, but not whether the other end spoke its protocol at all. A listening node
// sends the signature of ZeroMQ's protocol (ZMTP, RFC 23) as soon as it has taken a connection. Another program says
// something else, or waits to be spoken to. So a dialler whose handshake has failed connects once more and listens.
//
// greeting_of() and not_a_node() are pure. GreetingProbe is the loop's, on its thread; it is held by shared_ptr, and
// its handler is called once, from the loop, unless it is cancelled before.

#pragma once

#include <array>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "peer/address.hpp"

namespace gossamer::peer {

/// The most bytes of a greeting that are looked at.
inline constexpr std::size_t greeting_bytes = 64;
/// How long the port may be silent. A node greets within a round trip.
inline constexpr std::chrono::milliseconds greeting_patience{1500};

struct Greeting {
  enum class Speaker {
    zeromq,   ///< a node, or another program that uses ZeroMQ
    other,    ///< it says something else
    silent,   ///< it takes the connection and says nothing, or ends it
    unknown,  ///< there is no connection, or only a part of ZeroMQ's signature has come
  };
  Speaker speaker = Speaker::unknown;
  std::string beginning = {};  ///< the first characters that another program says, made printable
};

/// What the first bytes of a connection show. Without any bytes the speaker is silent.
[[nodiscard]] Greeting greeting_of(std::span<const std::uint8_t> bytes);

/// If the greeting shows that the port is no node's: text that says so, and what to look at. Otherwise empty.
[[nodiscard]] std::string not_a_node(const Greeting& greeting, const Address& address);

/// Says that a handshake has ended and that nothing shows why. `where`: the address that was dialled.
[[nodiscard]] std::string broken_handshake(const std::string& where);

class GreetingProbe : public std::enable_shared_from_this<GreetingProbe> {
 public:
  using Handler = std::function<void(const Greeting&)>;

  GreetingProbe(asio::io_context& loop, Handler handler) : socket_(loop), timer_(loop), handler_(std::move(handler)) {}

  /// `endpoint` is numeric. `interface`: as for all connections of the node.
  void start(const Address& endpoint, const std::string& interface);
  /// Returns the greeting, as far as it has come by now.
  [[nodiscard]] Greeting heard() const;
  /// The handler is not called any more.
  void cancel();

 private:
  void read();
  void end(const Greeting& greeting);

  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  Handler handler_;
  std::array<std::uint8_t, greeting_bytes> bytes_{};
  std::size_t read_bytes_ = 0;
  bool connected_ = false;
};

}  // namespace gossamer::peer
