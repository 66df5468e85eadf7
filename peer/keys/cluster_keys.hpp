// Holds the cluster key: 32 secret bytes that every node of a cluster holds and nobody else. There may be several, so
// that the key can be changed while nodes run: a node listens with the first, and a dialler tries all of its own.
//
// Called at start and by the key ring (peer/admission/key_ring.hpp), any thread. docs/explanation/security.md says what
// the key protects.

#pragma once

#include <expected>
#include <filesystem>
#include <optional>

#include "peer/keys/keys.hpp"

namespace gossamer::peer {

using Fingerprint = std::array<std::uint8_t, 8>;
/// Stands for a cluster key in signed statements. The key cannot be found from it.
using KeyDigest = std::array<std::uint8_t, 32>;
/// 16 hexadecimal digits.
[[nodiscard]] std::optional<Fingerprint> parse_fingerprint(std::string_view text);

/// A cluster key and what is derived from it (BLAKE2b key derivation, one context string for each use).
struct ClusterKey {
  Secret key;

  [[nodiscard]] static ClusterKey generate();
  /// The key pair that a listening socket uses as CURVE server: whoever does not hold the cluster key does not know its
  /// public half and cannot even begin a handshake.
  [[nodiscard]] KeyPair listening_keys() const;
  /// The key of the proof in a hello.
  [[nodiscard]] Secret hello_key() const;
  /// The key from which the secrets of invitations are derived.
  [[nodiscard]] Secret invitation_key() const;
  /// Names the key to people and members. The key cannot be found from it.
  [[nodiscard]] Fingerprint fingerprint() const;
  [[nodiscard]] KeyDigest digest() const;
};

/// One to max_cluster_keys keys, all different.
class ClusterKeys {
 public:
  explicit ClusterKeys(std::vector<ClusterKey> keys);
  [[nodiscard]] const ClusterKey& first() const { return keys_.front(); }
  [[nodiscard]] std::span<const ClusterKey> all() const { return keys_; }

 private:
  std::vector<ClusterKey> keys_;
};

/// Reads keys from text, one on each line: 44 characters of base64 or 64 hexadecimal digits. Empty lines and '#'
/// comments are skipped. The error names the line, never its content.
[[nodiscard]] std::expected<ClusterKeys, std::string> parse_cluster_keys(std::string_view text);
/// Reads such text from a file that nobody but its owner may read.
[[nodiscard]] std::expected<ClusterKeys, std::string> read_cluster_keys(const std::filesystem::path& path);
/// Makes or replaces the file. It is never half-written.
[[nodiscard]] std::expected<void, std::string> write_cluster_keys(const std::filesystem::path& path,
                                                                  const ClusterKeys& keys);
/// Reads the file, or makes it, since a node that was given no key founds a cluster of its own.
[[nodiscard]] std::expected<ClusterKeys, std::string> load_or_create_cluster_keys(const std::filesystem::path& path);

}  // namespace gossamer::peer
