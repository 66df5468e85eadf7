// What sockets that dial have in common. One socket is one attempt.

#pragma once

#include <zmq.hpp>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "peer/address.hpp"
#include "peer/keys/keys.hpp"

namespace gossamer::peer {

struct Dialling {
  std::span<const std::uint8_t, key_bytes> server_key;
  const KeyPair& own_keys;
  const Address& to;
  const std::string& interface;  ///< empty: any
  int handshake_timeout_ms;
  std::size_t max_frame_bytes;
};

/// To be called before the socket connects.
inline void prepare(zmq::socket_t& socket, const Dialling& dialling) {
  const auto buffer = [](std::span<const std::uint8_t, key_bytes> key) {
    return zmq::const_buffer(key.data(), key.size());
  };
  socket.set(zmq::sockopt::curve_serverkey, buffer(dialling.server_key));
  socket.set(zmq::sockopt::curve_publickey, buffer(dialling.own_keys.public_key));
  socket.set(zmq::sockopt::curve_secretkey, buffer(dialling.own_keys.secret_key.bytes()));
  // The socket is closed long before ZeroMQ reconnects by itself. If reconnecting were turned off, ZeroMQ would throw
  // away unread messages when a connection ends, like a goodbye.
  static constexpr std::chrono::milliseconds reconnect_after = std::chrono::hours(1);
  socket.set(zmq::sockopt::reconnect_ivl, static_cast<int>(reconnect_after.count()));
  socket.set(zmq::sockopt::handshake_ivl, dialling.handshake_timeout_ms);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(dialling.max_frame_bytes));
  if (!dialling.interface.empty()) socket.set(zmq::sockopt::bindtodevice, dialling.interface);
  if (dialling.to.is_ipv6()) socket.set(zmq::sockopt::ipv6, true);
}

}  // namespace gossamer::peer
