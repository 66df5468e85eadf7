// Certificates: what a node shows besides the cluster key, where the cluster's authority asks for it.
//
// A certificate has two halves. The authority signs a *warrant*: a key, how many nodes may be certified with it, what
// they may do, and until when. That key then signs the id of the node. The key travels in the invitation, so operators
// can invite nodes that they do not know yet, and no signer has to be in reach. For a node that is known, gossamerctl
// makes a warrant that names the node, and uses it at once. Such a certificate takes precedence over any that was made
// with an invitation.
//
// Gossamerctl and joining nodes make certificates, and every member checks them. Any thread; pure but for random bytes.
// docs/reference/wire.md has the bytes, docs/explanation/security.md what is signed and against whom it protects.

#pragma once

#include "peer/keys/authority.hpp"

namespace gossamer::peer {

using InvitationId = std::array<std::uint8_t, 16>;

[[nodiscard]] InvitationId random_invitation_id();

inline constexpr std::size_t max_jobs_text_bytes = 128;
/// The most bytes of a certificate.
inline constexpr std::size_t max_certificate_bytes = 512;

/// A node's role in the jobs that its certificate names.
enum class NodeRole : std::uint8_t {
  follows = 0,  ///< it may keep jobs for itself: it takes their models, and gives nothing to others
  trains = 1,   ///< it may do everything
  keeps = 2,    ///< it may keep jobs for all, also as a server, and train none
};
/// By number: what operators call the roles.
inline constexpr std::array<const char*, 3> role_words{"follow", "train", "keep"};
[[nodiscard]] constexpr const char* word_of(NodeRole role) {
  return role_words[static_cast<std::size_t>(role)];
}
[[nodiscard]] std::optional<NodeRole> role_named(std::string_view word);

/// The rights that a certificate gives its node.
struct Rights {
  NodeRole role = NodeRole::trains;
  /// Names of jobs, as patterns of fnmatch(3) with commas between them; at most max_jobs_text_bytes.
  std::string jobs = "*";

  friend bool operator==(const Rights&, const Rights&) = default;
  [[nodiscard]] bool allow_job(std::string_view name) const;
};

/// The time, in microseconds since 1970, as "2026-03-01 12:00 UTC", for messages.
[[nodiscard]] std::string date_text(TimeUs time_of_day);

/// Says what is wrong with patterns of job names that a user wrote; empty: nothing.
[[nodiscard]] std::string jobs_problem(std::string_view patterns);

/// Times are microseconds since 1970.
struct Warrant {
  static constexpr Power power = Power::invite;
  InvitationId invitation{};
  PublicKey key{};          ///< checks the second half of certificates
  std::uint32_t nodes = 1;  ///< how many nodes can be certified; 0: any number
  NodeId node = {};         ///< the only node that can be certified; all zeros: any node
  Rights rights;
  TimeUs usable_until = 0;  ///< nodes are certified until then
  TimeUs valid_until = 0;   ///< their certificates hold until then
  Signature signature{};    ///< the authority's, or a deputy's

  friend bool operator==(const Warrant&, const Warrant&) = default;
  [[nodiscard]] Statement statement() const;
};

struct Certificate {
  Warrant warrant;
  NodeId node;
  TimeUs made_at = 0;
  Signature signature{};  ///< made with the warrant's key

  friend bool operator==(const Certificate&, const Certificate&) = default;
  [[nodiscard]] Statement statement() const;
};

[[nodiscard]] std::vector<std::uint8_t> bytes_of(const Certificate& certificate);
/// Nothing if these bytes are no certificate. Checks no signature.
[[nodiscard]] std::optional<Certificate> parse_certificate(std::span<const std::uint8_t> bytes);
/// Reads a certificate from the hexadecimal digits of its bytes.
[[nodiscard]] std::optional<Certificate> parse_certificate_digits(std::string_view digits);
/// The authority or deputy that has signed the warrant, whatever it may sign now. Nothing unless both signatures hold.
[[nodiscard]] std::optional<PublicKey> signer_of(const Certificate& certificate, const Deciders& deciders);
/// Says, for people, why the certificate does not count for this node now; nothing if it does. Signatures are not
/// checked.
[[nodiscard]] std::optional<std::string> misfit_of(const Certificate& certificate, const NodeId& node,
                                                   TimeUs time_of_day);
/// Like misfit_of(), but also checks the signatures, which takes longer.
[[nodiscard]] std::optional<std::string> flaw_of(const Certificate& certificate, const NodeId& node,
                                                 const Deciders& deciders, TimeUs time_of_day);

/// A warrant with the secret half of its key: whoever has it certifies nodes.
struct UsableWarrant {
  Warrant warrant;
  SigningKey key;

  /// Gives the warrant a new key, and the signature of `signer`, which is the authority or a deputy.
  [[nodiscard]] static UsableWarrant make(Warrant warrant, const SigningKey& signer);
  [[nodiscard]] Certificate certify(const NodeId& node, TimeUs made_at) const;
  /// The text that ends an invitation's line, as base64url. It is a secret.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::optional<UsableWarrant> parse(std::string_view text);
};

}  // namespace gossamer::peer
