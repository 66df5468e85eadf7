// Runs a ZeroMQ socket inside an Asio loop.
//
// ZMQ_FD is edge-triggered and stands for "look at ZMQ_EVENTS", not for "readable": every wake-up drains until
// ZMQ_EVENTS is empty, and as a send can swallow an edge, every send looks again. At most messages_per_turn messages
// are handled in one turn, then the loop gets its turn for timers and other sockets.
//
// One thread, the loop's. Handlers may call send() and close() of this or any other socket. Frames sent without a copy
// keep their owner alive until ZeroMQ has encrypted them; that owner may be released on ZeroMQ's own thread.

#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <atomic>
#include <cerrno>
#include <deque>
#include <functional>
#include <zmq.hpp>

#include "peer/wire/codec.hpp"

namespace gossamer::peer {

inline constexpr std::size_t messages_per_turn = 64;
/// The most messages handled when a connection has ended, which is more than its queue can hold.
inline constexpr std::size_t messages_at_end = 4096;
/// Frames up to this size are copied, which is cheaper than sharing them.
inline constexpr std::size_t copied_frame_bytes = 1024;

enum class SendResult {
  sent,     ///< queued; it may still be lost with the link
  no_link,  ///< there is no link to that node
  full,     ///< the link's queue is full: try later, or another partner
};

/// Counts the bytes of one link that ZeroMQ has been given and has not encrypted yet. Shared with ZeroMQ's threads.
using QueueMeter = std::shared_ptr<std::atomic<std::size_t>>;

/// Calls ZeroMQ again as long as a signal interrupts it, which may happen even to calls that do not wait.
template <class Call>
auto uninterrupted(Call call) {
  for (;;) {
    try {
      return call();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

/// A message as received. At most `max_frames` frames are kept; further frames are read and dropped.
struct Received {
  std::vector<zmq::message_t> frames;
  bool too_many_frames = false;
  std::size_t bytes = 0;
};

class PolledSocket : public std::enable_shared_from_this<PolledSocket> {
 public:
  using Handler = std::function<void(Received&&)>;

  PolledSocket(asio::io_context& loop, zmq::context_t& context, zmq::socket_type type);
  PolledSocket(const PolledSocket&) = delete;
  PolledSocket& operator=(const PolledSocket&) = delete;
  ~PolledSocket() { close(0); }

  /// Gives access to options, bind and connect.
  [[nodiscard]] zmq::socket_t& socket() { return socket_; }
  /// Begins to receive. Call after bind or connect. The handler is not called after close().
  void start(std::size_t max_frames, Handler handler);
  /// Never blocks. `routing_id` goes first if it is not empty, `trailer` last. `no_link`: a ROUTER has no such peer any
  /// more, or a message broke off half-way and the socket is of no more use.
  [[nodiscard]] SendResult send(std::string_view routing_id, const Frames& frames, const QueueMeter& meter,
                                std::span<const std::uint8_t> trailer = {});
  /// Handles at once all that has arrived, because the last messages of an ending connection count.
  void drain_rest();
  /// Calls `call`, and until it returns receives on a thread of its own. What has come is handled soon. For calls that
  /// end only once messages have been received.
  void receive_while(const std::function<void()>& call);
  /// Stops receiving at once; what was sent is still delivered for up to `linger_ms`. May be called twice.
  void close(int linger_ms);
  [[nodiscard]] bool is_open() const { return open_; }

 private:
  void wait();
  void drain();
  [[nodiscard]] bool handle_one();
  void drain_soon();
  [[nodiscard]] bool has_message();
  [[nodiscard]] bool receive(Received& received);

  asio::io_context& loop_;
  zmq::socket_t socket_;
  asio::posix::stream_descriptor descriptor_;
  Handler handler_;
  std::deque<Received> received_;  ///< by receive_while(), and not handled yet
  std::size_t max_frames_ = 0;
  bool open_ = true;
  bool drain_queued_ = false;
};

/// A received message for decode(), without what a ROUTER puts before it.
struct Delivery {
  Frames frames;
  bool too_many_frames = false;
  std::size_t bytes = 0;
};
/// The frames share the memory that ZeroMQ received into. `first` is the header's index.
[[nodiscard]] Delivery delivery_of(Received&& received, std::size_t first);

}  // namespace gossamer::peer
