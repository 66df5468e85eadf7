// Receives what a ZeroMQ socket's monitor tells: connected, handshake done or failed and how, disconnected.
//
// Each monitored socket has a PAIR socket on the same loop. Thread rules are those of PolledSocket.

#pragma once

#include <cstring>
#include <functional>
#include <string>

#include "peer/links/polled_socket.hpp"

namespace gossamer::peer {

struct SocketEvent {
  std::uint16_t kind = 0;   ///< ZMQ_EVENT_…
  std::uint32_t value = 0;  ///< its meaning depends on the kind
};

/// The kinds that tell how dialling goes on.
inline constexpr int dialling_events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                                       ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                       ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

/// Watches `socket` for the kinds in `mask`, until close_watched(). ZeroMQ's thread waits while `most_waiting` events
/// and a thousand more have not been read; 0: it never waits.
inline std::shared_ptr<PolledSocket> watch_socket(asio::io_context& loop, zmq::context_t& context,
                                                  zmq::socket_t& socket, const std::string& endpoint, int mask,
                                                  std::function<void(SocketEvent)> handler, int most_waiting = 0) {
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), mask) != 0) throw zmq::error_t();
  auto events = std::make_shared<PolledSocket>(loop, context, zmq::socket_type::pair);
  events->socket().set(zmq::sockopt::rcvhwm, most_waiting);
  uninterrupted([&] { events->socket().connect(endpoint); });
  // An event has two frames: kind (16 bits) and value (32 bits), then the endpoint.
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

/// Closes a socket and what watches it, in the one order in which ZeroMQ's thread cannot get stuck on an event that
/// nobody will read. While that thread waits for events to be read, nobody can stop the watching. Either may be null or
/// closed already.
inline void close_watched(const std::shared_ptr<PolledSocket>& watched, const std::shared_ptr<PolledSocket>& events,
                          int linger_ms) {
  if (watched && watched->is_open()) {
    const auto stop = [&] { (void)zmq_socket_monitor(watched->socket().handle(), nullptr, 0); };
    if (events && events->is_open() && events->socket().get(zmq::sockopt::rcvhwm) > 0)
      events->receive_while(stop);
    else
      stop();
    watched->close(linger_ms);
  }
  if (events) events->close(0);
}

}  // namespace gossamer::peer
