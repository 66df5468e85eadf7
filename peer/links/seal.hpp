// Seals the messages of a bulk connection, and opens them: authenticated encryption by OpenSSL (AES-256-GCM, NIST SP
// 800-38D, or ChaCha20-Poly1305, RFC 8439). ZeroMQ does not encrypt this connection. So messages are encrypted only
// once, and not by the one thread of ZeroMQ that has the connection. docs/explanation/security.md has the construction
// and what must hold.
//
//   nonce        4 zero bytes, then the message's number in this direction (64 bits, little endian), never sent
//   associated   generation, number of frames, each frame's size (64 bits); without SealForm::encrypts, the frames, too
//   trailer      generation (1 byte), tag (16 bytes): the message's last frame
//
// Each direction of each connection has its own key. Both ends count the number, so a message does not open if one was
// left out, repeated or reordered, or if it comes from the other direction. Whoever seals begins a new *generation*
// after renew_after_bytes or renew_after_us: its key is derived from the one before, which is wiped.
//
// OutgoingSeal and IncomingSeal have one owner, the loop's thread. What they give out for one message (SealSlip) may be
// used on any thread.

#pragma once

#include <memory>
#include <optional>
#include <zmq.hpp>

#include "peer/keys/keys.hpp"
#include "peer/wire/codec.hpp"

namespace gossamer::peer {

/// The features that a node with this wish offers (peer/limits.hpp).
[[nodiscard]] std::uint64_t features_of(BulkProtection wish);

struct SealForm {
  bool aes = true;       ///< false: ChaCha20-Poly1305, for processors without instructions for AES
  bool encrypts = true;  ///< false: only authenticates

  friend bool operator==(const SealForm&, const SealForm&) = default;
};
/// How a link with these features seals bulk; nothing: it does not.
[[nodiscard]] std::optional<SealForm> seal_form(std::uint64_t features);

/// The longest life of a generation. It bounds what a key that is found in memory can open, and is far below the limits
/// of AES-GCM.
inline constexpr std::uint64_t renew_after_bytes = std::uint64_t{1} << 36;
inline constexpr TimeUs renew_after_us = 3600 * us_per_s;

inline constexpr std::size_t seal_tag_bytes = 16;
using SealTrailer = std::array<std::uint8_t, 1 + seal_tag_bytes>;

struct SealedMessage {
  Frames frames;  ///< of the same sizes as what was sealed
  SealTrailer trailer{};
};

/// All that it takes to seal or open one message.
class SealSlip {
 public:
  [[nodiscard]] SealedMessage seal(const Frames& message) const;
  /// Opens the frames in place. `frames` are without the trailer. False: this is not what was sealed, and the frames
  /// hold nothing of use.
  [[nodiscard]] bool open(std::span<zmq::message_t> frames, const SealTrailer& trailer) const;

 private:
  friend class SealDirection;
  SealSlip(SealForm form, std::shared_ptr<const Secret> key, std::uint8_t generation, std::uint64_t number)
      : form_(form), key_(std::move(key)), generation_(generation), number_(number) {}

  SealForm form_;
  std::shared_ptr<const Secret> key_;
  std::uint8_t generation_;
  std::uint64_t number_;
};

/// The key, generation and message number of one direction, which both ends count.
class SealDirection {
 public:
  SealDirection(SealForm form, const Secret& key) : form_(form), key_(std::make_shared<const Secret>(key)) {}

 protected:
  void renew();
  [[nodiscard]] SealSlip next() { return {form_, key_, generation_, number_++}; }
  [[nodiscard]] std::uint8_t generation() const { return generation_; }

 private:
  SealForm form_;
  std::shared_ptr<const Secret> key_;
  std::uint8_t generation_ = 0;  ///< its low 8 bits; a receiver accepts the same or the next
  std::uint64_t number_ = 0;
};

class OutgoingSeal : SealDirection {
 public:
  using SealDirection::SealDirection;
  /// Gives the slip for the next message to send. Every slip must be used, in order.
  [[nodiscard]] SealSlip take(std::size_t bytes, TimeUs now);

 private:
  std::uint64_t bytes_ = 0;  ///< sealed in this generation
  TimeUs since_ = 0;         ///< when this generation began; 0: it begins with the first message
};

class IncomingSeal : SealDirection {
 public:
  using SealDirection::SealDirection;
  /// Gives the slip for the next message that has come. Nothing if the trailer cannot be of this connection.
  [[nodiscard]] std::optional<SealSlip> take(const SealTrailer& trailer);
};

}  // namespace gossamer::peer
