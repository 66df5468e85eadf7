// The authority of a cluster: whoever holds an Ed25519 key decides for all of it who is denied and which keys admit.
//
// Members hold its public half, and check. Only gossamerctl signs, with a key that its operator keeps where he likes:
// no daemon ever holds it, and nobody who signs has to be in reach. Pure but for files and random bytes, any thread.
// docs/explanation/security.md says what the authority protects against whom.

#pragma once

#include <map>
#include <optional>

#include "gossip/messages.hpp"
#include "peer/keys/cluster_keys.hpp"

namespace gossamer::peer {

/// Ed25519, of libsodium's crypto_sign_detached.
using Signature = std::array<std::uint8_t, 64>;
/// The hash that is signed: BLAKE2b-256 over the kind of a decision and all its fields.
using Statement = Proof;
using Signatures = std::map<Statement, Signature>;

/// "The node is denied, or allowed again." Times are microseconds since 1970.
[[nodiscard]] Statement denial_statement(const NodeId& node, bool denied, TimeUs decided_at, std::string_view reason);
/// "This cluster key admits."
[[nodiscard]] Statement key_statement(const KeyDigest& key, TimeUs made_at);
/// "The cluster key admits nobody any more."
[[nodiscard]] Statement retirement_statement(const Fingerprint& key, TimeUs retired_at);

/// "Nodes are let in with a certificate only, or with a cluster key alone again."
[[nodiscard]] Statement rule_statement(bool certificates, TimeUs decided_at);
/// "The job of this name has these settings, of this version."
[[nodiscard]] Statement settings_statement(std::string_view job, const JobSettings& settings);

[[nodiscard]] bool is_signed(const PublicKey& authority, const Statement& statement,
                             const std::optional<Signature>& signature);

/// The secret half of an authority, or of a warrant (peer/keys/certificate.hpp).
class SigningKey {
 public:
  explicit SigningKey(const Secret& seed) : seed_(seed) {}
  [[nodiscard]] static SigningKey generate();
  /// Reads a file that nobody but its owner may read. Errors say what to do, and never hold what is in the file.
  [[nodiscard]] static std::expected<SigningKey, std::string> read(const std::filesystem::path& path);

  /// Makes the file. An error if it is there.
  [[nodiscard]] std::expected<void, std::string> create(const std::filesystem::path& path) const;
  [[nodiscard]] PublicKey authority() const;
  [[nodiscard]] const Secret& seed() const { return seed_; }
  [[nodiscard]] Signature sign(const Statement& statement) const;

 private:
  SigningKey() = default;

  Secret seed_;
};

}  // namespace gossamer::peer
