// Makes and reads invitations. An invitation is one line of text with which nodes can join until it expires, without
// ever having seen the cluster key.
//
//   gossamer-invite-1: + base64url without padding of
//     id (16) | expires at (8, µs since 1970) | listening public key (32) | secret (32)
//     | count of addresses (1) | each: length (2), text | first 4 bytes of BLAKE2b-256 over all before
//
// Numbers are little endian. An invitation with a warrant begins with gossamer-invite-2: and has the warrant behind a
// '.' (UsableWarrant::text()): gossamerctl appends it to the line that a member has made. Its secret is derived in
// another way, so that nobody can leave the warrant out. The secret is BLAKE2b-256, keyed with the cluster key's
// invitation key, over id and expiry: any member can check a claim without having stored anything, and nobody can make
// an invitation last longer. The listening key lets the newcomer begin CURVE's handshake, and shows it that a member
// answers. Made and read by the overlay, the daemon and the tests, any thread; pure but for the random id. The line is
// a secret: nothing logs it.

#pragma once

#include "peer/address.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

struct Invitation {
  InvitationId id{};
  TimeUs expires_at = 0;  ///< µs since 1970, by the clock of the member that is asked
  PublicKey listening_key{};
  Secret secret = {};
  bool needs_warrant = false;
  std::optional<UsableWarrant> warrant = {};
  std::vector<Address> addresses = {};  ///< 1 to max_invitation_addresses; where members answer
};

inline constexpr std::string_view invitation_prefix = "gossamer-invite-1:";
inline constexpr std::string_view warranted_prefix = "gossamer-invite-2:";
/// No line is longer.
inline constexpr std::size_t max_invitation_characters = 4096;

/// `key` is the one that the members listen with. Addresses beyond max_invitation_addresses are left out.
[[nodiscard]] Invitation make_invitation(const ClusterKey& key, std::vector<Address> addresses, TimeUs expires_at,
                                         bool needs_warrant = false);
/// The invitation as a line of text. If it needs a warrant and has none yet, the line is without one.
[[nodiscard]] std::string invitation_line(const Invitation& invitation);
/// The error says what is wrong and what to do, and repeats nothing of the line. Spaces around the line are skipped.
[[nodiscard]] std::expected<Invitation, std::string> parse_invitation(std::string_view line);

[[nodiscard]] Secret invitation_secret(const ClusterKey& key, const InvitationId& id, TimeUs expires_at,
                                       bool needs_warrant);
/// Makes a claim of the invitation, with its proof. `certificate`: the node's, made with the invitation's warrant.
[[nodiscard]] InvitationClaim make_claim(const Invitation& invitation, const PublicKey& own_key,
                                         const std::optional<Certificate>& certificate = {});
[[nodiscard]] Proof claim_proof(const Secret& invitation_secret, const InvitationClaim& claim);
/// True if the claim's invitation was made with some key of the ring. This proves the expiry, too.
[[nodiscard]] bool is_claim_proven(const ClusterKeys& keys, const InvitationClaim& claim);

}  // namespace gossamer::peer
