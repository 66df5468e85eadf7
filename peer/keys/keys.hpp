// Makes and keeps a node's identity: its CURVE key pair and the id that follows from it.
//
// Called at start, any thread. Secrets live in Secret, which wipes itself and has no way into a log. The secret part of
// an identity is kept in the state folder, in a file that only its owner can read.

#pragma once

#include <expected>
#include <filesystem>
#include <span>
#include <string_view>

#include "gossip/types.hpp"

namespace gossamer::peer {

inline constexpr std::size_t key_bytes = 32;
using PublicKey = std::array<std::uint8_t, key_bytes>;
/// BLAKE2b-256 over a list of fields (peer/keys/transcript.hpp).
using Proof = std::array<std::uint8_t, 32>;

/// Holds 32 secret bytes, and wipes them on destruction. Nothing prints them, and this class cannot turn them into
/// text.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::span<const std::uint8_t, key_bytes> bytes);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  [[nodiscard]] std::span<const std::uint8_t, key_bytes> bytes() const { return bytes_; }
  [[nodiscard]] std::span<std::uint8_t, key_bytes> writable() { return bytes_; }
  /// Compares in constant time.
  [[nodiscard]] bool same_as(const Secret& other) const;

 private:
  std::array<std::uint8_t, key_bytes> bytes_{};
};

/// A CURVE (X25519) key pair.
struct KeyPair {
  PublicKey public_key{};
  Secret secret_key;

  [[nodiscard]] static KeyPair generate();
  /// The pair that a secret determines.
  [[nodiscard]] static KeyPair from_secret(const Secret& secret);
};

/// First 16 bytes of BLAKE2b-256 of the public key.
[[nodiscard]] NodeId node_id(const PublicKey& public_key);
/// Hexadecimal digits. ZeroMQ's User-Id carries a public key in this form.
[[nodiscard]] std::string hex(std::span<const std::uint8_t> bytes);
/// False unless the text is the hexadecimal digits of as many bytes.
[[nodiscard]] bool parse_hex(std::string_view text, std::span<std::uint8_t> bytes);

struct Identity {
  KeyPair keys;
  NodeId node;

  [[nodiscard]] static Identity generate();
};

inline constexpr const char* node_key_file_name = "node.key";

/// Reads the identity from `state_dir`/node.key. The first start makes the file, and the folder if need be. Errors say
/// what is wrong with the file and what to do. A file that others can read, or that holds anything else, is refused,
/// never replaced.
[[nodiscard]] std::expected<Identity, std::string> load_or_create_identity(const std::filesystem::path& state_dir);

}  // namespace gossamer::peer
