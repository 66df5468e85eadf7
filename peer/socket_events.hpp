// What a ZeroMQ socket's monitor tells: connected, handshake done or failed and how, disconnected.
//
// One PAIR socket a monitored socket, on the same loop. Same thread rules as PolledSocket.

#pragma once

#include <cstring>
#include <functional>
#include <string>

#include "peer/polled_socket.hpp"

namespace gossamer::peer {

struct SocketEvent {
  std::uint16_t kind = 0;   ///< ZMQ_EVENT_…
  std::uint32_t value = 0;  ///< its meaning depends on the kind
};

/// Watches `socket` for the kinds in `mask`; close the result before or after the socket, with PolledSocket::close().
inline std::shared_ptr<PolledSocket> watch_socket(asio::io_context& loop, zmq::context_t& context,
                                                  zmq::socket_t& socket, const std::string& endpoint, int mask,
                                                  std::function<void(SocketEvent)> handler) {
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), mask) != 0) throw zmq::error_t();
  auto events = std::make_shared<PolledSocket>(loop, context, zmq::socket_type::pair);
  events->socket().connect(endpoint);
  // Two frames: kind (16 bits) and value (32 bits), then the endpoint.
  events->start(2, [handler = std::move(handler)](Received&& received) {
    SocketEvent event;
    if (received.frames.empty() || received.frames[0].size() != sizeof event.kind + sizeof event.value) return;
    const auto* bytes = static_cast<const std::byte*>(received.frames[0].data());
    std::memcpy(&event.kind, bytes, sizeof event.kind);
    std::memcpy(&event.value, bytes + sizeof event.kind, sizeof event.value);
    handler(event);
  });
  return events;
}

}  // namespace gossamer::peer
