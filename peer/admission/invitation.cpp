#include "peer/admission/invitation.hpp"

#include <algorithm>

#include "gossip/plain_text.hpp"
#include "peer/admission/admission.hpp"
#include "peer/keys/fields.hpp"
#include "peer/keys/transcript.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::size_t check_bytes = 4;
constexpr const char* advice = ": copy the whole line again, or ask a member for a new one (gossamerctl invite)";

constexpr char warrant_mark = '.';

using Text = std::vector<std::uint8_t>;

std::array<std::uint8_t, check_bytes> check_of(std::span<const std::uint8_t> bytes) {
  std::array<std::uint8_t, 32> hash{};
  GOSSAMER_CHECK(crypto_generichash(hash.data(), hash.size(), bytes.data(), bytes.size(), nullptr, 0) == 0);
  std::array<std::uint8_t, check_bytes> check{};
  std::copy_n(hash.begin(), check.size(), check.begin());
  return check;
}

std::optional<Invitation> read_fields(std::span<const std::uint8_t> bytes) {
  Invitation invitation;
  Fields fields(bytes);
  fields.take(invitation.id);
  invitation.expires_at = static_cast<TimeUs>(fields.number(sizeof(TimeUs)));
  fields.take(invitation.listening_key);
  fields.take(invitation.secret.writable());
  const std::uint64_t count = fields.number(1);
  if (!fields.sound() || count == 0 || count > max_invitation_addresses) return std::nullopt;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t length = fields.number(2);
    if (length > max_address_bytes) return std::nullopt;
    auto address = parse_address(fields.text(length), AddressUse::dial);
    if (!address) return std::nullopt;
    invitation.addresses.push_back(std::move(*address));
  }
  if (!fields.ended()) return std::nullopt;
  return invitation;
}

std::optional<Invitation> read_line(std::string_view line) {
  auto text = from_base64url(line);
  if (!text) return std::nullopt;
  std::optional<Invitation> invitation;
  if (text->size() > check_bytes) {
    const auto content = std::span(*text).first(text->size() - check_bytes);
    const auto check = std::span(*text).subspan(content.size(), check_bytes);
    if (std::ranges::equal(check, check_of(content))) invitation = read_fields(content);
  }
  wipe(*text);
  return invitation;
}

}  // namespace

Invitation make_invitation(const ClusterKey& key, std::vector<Address> addresses, TimeUs expires_at,
                           bool needs_warrant) {
  Invitation invitation;
  invitation.id = random_invitation_id();
  invitation.expires_at = expires_at;
  invitation.listening_key = key.listening_keys().public_key;
  invitation.needs_warrant = needs_warrant;
  invitation.secret = invitation_secret(key, invitation.id, expires_at, needs_warrant);
  addresses.resize(std::min(addresses.size(), max_invitation_addresses));
  invitation.addresses = std::move(addresses);
  return invitation;
}

std::string invitation_line(const Invitation& invitation) {
  GOSSAMER_CHECK(!invitation.addresses.empty() && invitation.addresses.size() <= max_invitation_addresses);
  Text text;
  text.reserve(max_invitation_characters);
  append(text, invitation.id);
  append_number(text, static_cast<std::uint64_t>(invitation.expires_at), sizeof(TimeUs));
  append(text, invitation.listening_key);
  append(text, invitation.secret.bytes());
  append_number(text, invitation.addresses.size(), 1);
  for (const Address& address : invitation.addresses) {
    const std::string place = address.text();
    append_number(text, place.size(), 2);
    append(text, place);
  }
  append(text, check_of(text));
  std::string whole(invitation.needs_warrant ? warranted_prefix : invitation_prefix);
  whole += to_base64url(std::move(text));
  if (invitation.warrant) whole.append(1, warrant_mark).append(invitation.warrant->text());
  return whole;
}

std::expected<Invitation, std::string> parse_invitation(std::string_view line) {
  line = trimmed(line, " \t\r\n");
  const std::string_view family = invitation_prefix.substr(0, invitation_prefix.find('1'));
  if (!line.starts_with(family)) {
    return std::unexpected("this is no invitation, which starts with '" + std::string(invitation_prefix) + "' or '" +
                           std::string(warranted_prefix) + "'" + advice);
  }
  const bool needs_warrant = line.starts_with(warranted_prefix);
  if (!needs_warrant && !line.starts_with(invitation_prefix)) {
    return std::unexpected(
        "this invitation was made by another version of Gossamer: bring both machines to the same version, and ask for "
        "a new one (gossamerctl invite)");
  }
  line.remove_prefix(invitation_prefix.size());
  const std::string garbled = std::string("this invitation is cut off or garbled") + advice;
  const std::size_t mark = needs_warrant ? line.find(warrant_mark) : line.size();
  const std::string_view warrant_text = line.substr(std::min(line.size(), mark + 1));
  const std::string_view line_text = line.substr(0, mark);
  if (line.size() > max_invitation_characters) return std::unexpected(garbled);
  auto invitation = read_line(line_text);
  if (invitation && needs_warrant) {
    invitation->needs_warrant = true;
    invitation->warrant = UsableWarrant::parse(warrant_text);
  }
  if (!invitation || (needs_warrant && !invitation->warrant)) return std::unexpected(garbled);
  return std::move(*invitation);
}

Secret invitation_secret(const ClusterKey& key, const InvitationId& id, TimeUs expires_at, bool needs_warrant) {
  Transcript transcript(needs_warrant ? "gossamer invitation 2" : "gossamer invitation 1", key.invitation_key());
  transcript.add_bytes(id);
  transcript.add_number(static_cast<std::uint64_t>(expires_at));
  return transcript.secret();
}

InvitationClaim make_claim(const Invitation& invitation, const PublicKey& own_key,
                           const std::optional<Certificate>& certificate) {
  InvitationClaim claim{invitation.id, invitation.expires_at, own_key, random_nonce(), {}, certificate};
  claim.proof = claim_proof(invitation.secret, claim);
  return claim;
}

Proof claim_proof(const Secret& invitation_secret, const InvitationClaim& claim) {
  Transcript transcript("gossamer claim 1", invitation_secret);
  transcript.add_bytes(claim.invitation);
  transcript.add_number(static_cast<std::uint64_t>(claim.expires_at));
  transcript.add_bytes(claim.public_key);
  transcript.add_bytes(claim.nonce);
  return transcript.proof();
}

bool is_claim_proven(const ClusterKeys& keys, const InvitationClaim& claim) {
  return std::ranges::any_of(keys.all(), [&](const ClusterKey& key) {
    const Secret secret = invitation_secret(key, claim.invitation, claim.expires_at, claim.certificate.has_value());
    return same(claim_proof(secret, claim), claim.proof);
  });
}

}  // namespace gossamer::peer
