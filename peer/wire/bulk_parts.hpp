// Cuts large messages that wait for a link's bulk channel into parts, and puts the parts together at the other end
// (docs/reference/wire.md, bulkPart).
//
// A large message would occupy the connection and the link's queue for as long as it takes to send. So it goes in parts
// whose size follows the link's rate (peer/links/pacing.hpp). A message that is no larger than a part goes whole. The
// parts are slices of the message's own memory: nothing is copied on the sending side. No part of another message comes
// between a message's parts, so that a receiver puts together at most one message at a time.
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
  /// The bytes that wait, without those of the first message that have been sent.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// The frames to send next: the first message if it is no larger than 1.5 times `part_bytes`, else its next part,
  /// with about that many bytes of payload. The queue must not be empty.
  [[nodiscard]] Frames next(std::size_t part_bytes) const;
  /// `next` was sent: takes it out. True if a message is complete with it.
  bool pop(const Frames& next);

 private:
  std::deque<Frames> waiting_;
  std::size_t bytes_ = 0;
  std::size_t offset_ = 0;    ///< payload bytes of the first message that have been sent
  std::uint64_t number_ = 0;  ///< the number of the last message that was cut
};

class BulkAssembly {
 public:
  /// Takes the next part. Gives the message when it is complete. The error says what is against the protocol; the
  /// message is given up then.
  [[nodiscard]] std::expected<std::optional<Frames>, std::string_view> add(const BulkPart& part);
  /// The memory held for an incomplete message: at most that of `max_payload_frames` of the largest size.
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
