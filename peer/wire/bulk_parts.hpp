// Large messages in parts: what waits to be sent on a link's bulk channel and cuts itself to size, and what puts the
// parts together at the other end (docs/reference/wire.md, bulkPart).
//
// A large message would hold the connection for as long as it takes to send, and the link's queue with it. So it goes
// in parts whose size follows the link's rate (peer/links/pacing.hpp); one that is no larger than a part goes as it is.
// The parts are slices of the message's own memory: nothing is copied on the sending side. A message's parts follow
// each other, none of another message between them, so that a receiver has at most one message in the making.
//
// One owner, one thread: the overlay's loop.

#pragma once

#include <deque>
#include <expected>
#include <optional>
#include <string_view>

#include "gossip/codec/frame_buffer.hpp"
#include "peer/wire/codec.hpp"

namespace gossamer::peer {

class BulkQueue {
 public:
  void push(Frames message);
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Of the messages that wait, less what has gone of the first.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// What is to be sent next: the first message if it is no larger than 1.5 times `part_bytes`, else its next part,
  /// with about that many bytes of payload. Not empty().
  [[nodiscard]] Frames next(std::size_t part_bytes) const;
  /// `next` was sent: takes it out. True if a message is complete with it.
  bool pop(const Frames& next);

 private:
  std::deque<Frames> waiting_;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;    ///< in the payload of the first that has gone
  std::uint64_t number_ = 0;  ///< of the message that is in parts, or was last
};

class BulkAssembly {
 public:
  /// Takes the next part. Gives the message when it is complete. The error says what is against the protocol; the
  /// message is given up then.
  [[nodiscard]] std::expected<std::optional<Frames>, std::string_view> add(const BulkPart& part);
  /// Held for a message in the making: at most what `max_payload_frames` of the largest size take.
  [[nodiscard]] std::size_t bytes() const;

 private:
  [[nodiscard]] std::expected<std::optional<Frames>, std::string_view> fail(std::string_view why);
  void begin(const BulkPart& part);

  std::uint64_t number_ = 0;
  std::size_t got_ = 0;
  std::size_t total_ = 0;
  bool under_way_ = false;
  std::vector<std::byte> header_;
  std::vector<gossip::FrameBuffer> frames_;
};

}  // namespace gossamer::peer
