// What sockets that dial have in common. One socket is one attempt.

#pragma once

#include <zmq.hpp>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "peer/address.hpp"
#include "peer/admission/admission.hpp"
#include "peer/admission/bulk_keys.hpp"

namespace gossamer::peer {

/// A number that nobody can guess.
inline std::uint64_t random_number() {
  const Nonce nonce = random_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof number);
  return number;
}

struct Dialling {
  const Address& to;
  const std::string& interface;  ///< empty: any
  std::size_t max_frame_bytes;
};

/// The mark of sealed bulk, as the byte in IP's header (DSCP 7, which RFC 2474 leaves to local use, and which networks
/// do not treat specially). By this mark the listener's kernel tells the two kinds of connection to its port apart.
inline constexpr int sealed_bulk_mark = 7 << 2;
/// The routing id of a sealed connection. It never equals one that ZeroMQ makes up, since those begin with a zero byte,
/// or one of the listener's, which are shorter.
inline std::string sealed_routing_id(const std::string& ticket_name) {
  return "sealed-" + ticket_name;
}
/// The connection carries sealed messages. To be called before the socket connects.
inline void use_ticket(zmq::socket_t& socket, const BulkKeys& keys) {
  socket.set(zmq::sockopt::plain_username, keys.ticket_name);
  socket.set(zmq::sockopt::plain_password, keys.ticket_password);
  socket.set(zmq::sockopt::routing_id, sealed_routing_id(keys.ticket_name));
  socket.set(zmq::sockopt::tos, sealed_bulk_mark);
}

/// The other end must have `server_key`. To be called before the socket connects.
inline void use_curve(zmq::socket_t& socket, std::span<const std::uint8_t, key_bytes> server_key,
                      const KeyPair& own_keys) {
  const auto buffer = [](std::span<const std::uint8_t, key_bytes> key) {
    return zmq::const_buffer(key.data(), key.size());
  };
  socket.set(zmq::sockopt::curve_serverkey, buffer(server_key));
  socket.set(zmq::sockopt::curve_publickey, buffer(own_keys.public_key));
  socket.set(zmq::sockopt::curve_secretkey, buffer(own_keys.secret_key.bytes()));
}

/// To be called before the socket connects.
inline void prepare(zmq::socket_t& socket, const Dialling& dialling) {
  // The socket is closed long before ZeroMQ reconnects by itself. If reconnecting were turned off, ZeroMQ would throw
  // away unread messages, such as a goodbye, when a connection ends.
  static constexpr std::chrono::milliseconds reconnect_after = std::chrono::hours(1);
  socket.set(zmq::sockopt::reconnect_ivl, static_cast<int>(reconnect_after.count()));
  // The dialler's own timer ends a silent handshake. ZeroMQ's would tell silence and a refused key alike.
  socket.set(zmq::sockopt::handshake_ivl, 0);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(dialling.max_frame_bytes));
  if (!dialling.interface.empty()) socket.set(zmq::sockopt::bindtodevice, dialling.interface);
  if (dialling.to.is_ipv6()) socket.set(zmq::sockopt::ipv6, true);
}

}  // namespace gossamer::peer
