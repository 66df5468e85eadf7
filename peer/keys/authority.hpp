// The authority of a cluster: whoever holds its Ed25519 key decides for the whole cluster who is denied and which keys
// admit.
//
// Members hold the public half of the key and check signatures with it. Only gossamerctl signs, with a key that its
// operator keeps where he likes. No daemon ever holds the secret half, and the signer need not be in reach of the
// cluster. The authority may appoint deputies: other keys, which sign some kinds of decisions in its place. Pure but
// for files and random bytes, any thread. docs/explanation/security.md says what the authority protects against whom.

#pragma once

#include <map>
#include <optional>
#include <vector>

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

[[nodiscard]] bool is_signed(const PublicKey& signer, const Statement& statement,
                             const std::optional<Signature>& signature);

/// The kinds of decisions that a deputy may sign, one bit for each.
enum class Power : std::uint8_t {
  none = 0,      ///< only the authority signs that
  deny = 1,      ///< who is denied, or allowed again
  keys = 2,      ///< which cluster keys admit, and which are retired
  settings = 4,  ///< settings of jobs
  invite = 8,    ///< invitations, and certificates of nodes
};
inline constexpr std::uint8_t all_powers = 15;
inline constexpr std::pair<Power, std::string_view> names_of_powers[] = {
    {Power::deny, "deny"}, {Power::keys, "keys"}, {Power::settings, "settings"}, {Power::invite, "invite"}};

/// Says that a key may sign in the authority's place. Of two such decisions about a key, the later holds.
struct Deputy {
  static constexpr Power power = Power::none;
  PublicKey key{};
  std::uint8_t powers = 0;  ///< bits of Power; 0: a deputy no more
  TimeUs decided_at = 0;    ///< microseconds since 1970
  std::string name;         ///< for people; at most max_name_bytes
  Signature signature{};

  friend bool operator==(const Deputy&, const Deputy&) = default;
  [[nodiscard]] Statement statement() const;
};
/// The powers in words, such as "keys, invite"; "nothing" if there are none.
[[nodiscard]] std::string words_of_powers(std::uint8_t powers);

/// The authority and the deputies that decide for a cluster.
struct Deciders {
  Deciders(const PublicKey& of) : authority(of) {}  // NOLINT(google-explicit-constructor)
  PublicKey authority{};
  std::vector<Deputy> deputies = {};  ///< one for each key, at most max_deputies

  friend bool operator==(const Deciders&, const Deciders&) = default;
  /// The authority or the deputy that has made the signature, whatever it may sign now. Nothing: none of them has.
  [[nodiscard]] std::optional<PublicKey> signer_of(const Statement& statement,
                                                   const std::optional<Signature>& signature) const;
  [[nodiscard]] bool may_sign(const PublicKey& signer, Power power) const;
  /// "authority", or the deputy's name.
  [[nodiscard]] std::string name_of(const PublicKey& signer) const;
  [[nodiscard]] bool have_signed(Power power, const Statement& statement,
                                 const std::optional<Signature>& signature) const;
  template <class Decision>
  [[nodiscard]] bool have_signed(const Decision& decision) const {
    return have_signed(Decision::power, decision.statement(), decision.signature);
  }
};

/// The secret half of an authority, a deputy, or a warrant (peer/keys/certificate.hpp).
class SigningKey {
 public:
  explicit SigningKey(const Secret& seed) : seed_(seed) {}
  [[nodiscard]] static SigningKey generate();
  /// Reads a file that nobody but its owner may read. Errors say what to do, and never hold what is in the file.
  [[nodiscard]] static std::expected<SigningKey, std::string> read(const std::filesystem::path& path);

  /// Creates the key file. An error if the file exists already.
  [[nodiscard]] std::expected<void, std::string> create(const std::filesystem::path& path) const;
  [[nodiscard]] PublicKey public_half() const;
  [[nodiscard]] const Secret& seed() const { return seed_; }
  [[nodiscard]] Signature sign(const Statement& statement) const;

 private:
  SigningKey() = default;

  Secret seed_;
};

}  // namespace gossamer::peer
