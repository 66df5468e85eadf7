// One end of a connection whose messages are sealed (peer/links/seal.hpp): what is sent goes out sealed and in order,
// what comes is opened. A message that is sealed must be sent, since the other end counts them. So one that ZeroMQ has
// no room for waits here.
//
// One owner, the loop's thread.

#pragma once

#include "peer/links/polled_socket.hpp"
#include "peer/links/seal.hpp"

namespace gossamer::peer {

/// Says for people that SealedEnd::open() was false.
inline std::string broken_seal(const std::string& where) {
  return "what came from " + where + " on the bulk connection is not as it was sealed: something on the way changes it";
}

class SealedEnd {
 public:
  SealedEnd(SealForm form, const Secret& out, const Secret& in) : form_(form), out_(form, out), in_(form, in) {}
  [[nodiscard]] SealForm form() const { return form_; }

  /// `full`: nothing was done with the message. `sent`: it will go, at the latest with a later flush().
  [[nodiscard]] SendResult send(PolledSocket& socket, std::string_view routing_id, const Frames& frames,
                                const QueueMeter& meter, TimeUs now);
  /// Sends what waits. `full`: it still does.
  [[nodiscard]] SendResult flush(PolledSocket& socket, std::string_view routing_id);
  /// Opens, in place, the frames from `first` on, and takes the trailer away. False: it was not sealed by the other end
  /// for this connection and this place in its order.
  [[nodiscard]] bool open(Received& received, std::size_t first);

 private:
  struct Waiting {
    SealedMessage message;
    QueueMeter meter;
  };

  SealForm form_;
  OutgoingSeal out_;
  IncomingSeal in_;
  std::optional<Waiting> waiting_;
};

}  // namespace gossamer::peer
