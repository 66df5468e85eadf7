// One end of a connection whose messages are sealed (peer/links/seal.hpp): what is sent goes out sealed and in order,
// what comes is opened and handed on in order. Large messages are sealed and opened on other threads, several at a
// time, if there are some. A message that is sealed must be sent, since the other end counts them; so it waits here
// while ZeroMQ has no room for it, or an earlier one is not sealed yet.
//
// One owner, the loop's thread.

#pragma once

#include <atomic>
#include <deque>
#include <functional>

#include "peer/links/polled_socket.hpp"
#include "peer/links/seal.hpp"
#include "peer/links/seal_threads.hpp"

namespace gossamer::peer {

/// Says for people that a message was not opened.
inline std::string broken_seal(const std::string& where) {
  return "what came from " + where + " on the bulk connection is not as it was sealed: something on the way changes it";
}

class SealedEnd {
 public:
  /// Puts a message on the connection.
  using Put = std::function<SendResult(const SealedMessage& message, const QueueMeter& meter)>;
  /// `good`: the message was sealed by the other end for this connection and this place in its order.
  using Opened = std::function<void(Received&& received, bool good)>;

  /// Without `threads` the loop does all the work. `put` and the handlers of open() may destroy this object, and are
  /// not called after that.
  SealedEnd(SealForm form, const Secret& out, const Secret& in, std::shared_ptr<SealThreads> threads, Put put);
  SealedEnd(SealedEnd&&) = default;
  SealedEnd& operator=(SealedEnd&&) = delete;
  ~SealedEnd();
  [[nodiscard]] SealForm form() const { return form_; }

  /// `full`: nothing was done with the message. `sent`: it will go, at the latest with a later flush().
  [[nodiscard]] SendResult send(const Frames& frames, const QueueMeter& meter, TimeUs now);
  /// Sends what waits and is sealed. `full`: ZeroMQ has no room for it.
  SendResult flush();
  /// Sends all that waits, and waits for the threads that seal it. For the end of the connection.
  void flush_all();
  /// Opens the frames from `first` on, and takes the trailer away.
  void open(Received&& received, std::size_t first, Opened opened);

 private:
  struct Outgoing;
  struct Incoming;
  /// Owned by the SealedEnd alone. A thread that has sealed or opened a message reports to the queues, if they still
  /// exist.
  struct Queues {
    [[nodiscard]] SendResult flush();
    /// The caller keeps the queues alive meanwhile.
    void deliver();

    Put put;
    std::deque<std::shared_ptr<Outgoing>> outgoing;
    std::deque<std::shared_ptr<Incoming>> incoming;
    bool broken = false;  ///< the connection took no more
  };

  SealForm form_;
  OutgoingSeal out_;
  IncomingSeal in_;
  std::shared_ptr<SealThreads> threads_;
  std::shared_ptr<Queues> queues_;
};

}  // namespace gossamer::peer
