#include "peer/admission/invitation.hpp"

#include <algorithm>
#include <ctime>

#include "gossip/plain_text.hpp"
#include "peer/admission/admission.hpp"
#include "peer/keys/transcript.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr int text_form = sodium_base64_VARIANT_URLSAFE_NO_PADDING;
constexpr std::size_t check_bytes = 4;
constexpr const char* advice = ": copy the whole line again, or ask a member for a new one (gossamerctl invite)";

using Text = std::vector<std::uint8_t>;

std::array<std::uint8_t, check_bytes> check_of(std::span<const std::uint8_t> bytes) {
  std::array<std::uint8_t, 32> hash{};
  GOSSAMER_CHECK(crypto_generichash(hash.data(), hash.size(), bytes.data(), bytes.size(), nullptr, 0) == 0);
  std::array<std::uint8_t, check_bytes> check{};
  std::copy_n(hash.begin(), check.size(), check.begin());
  return check;
}

void append(Text& text, std::span<const std::uint8_t> bytes) {
  text.insert(text.end(), bytes.begin(), bytes.end());
}
void append_number(Text& text, std::uint64_t number, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    text.push_back(static_cast<std::uint8_t>(number >> (8 * i)));
}

/// Takes fields off the front of bytes; once something is missing, everything is.
class Fields {
 public:
  explicit Fields(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
  void take(std::span<std::uint8_t> out) {
    if (rest_.size() < out.size()) sound_ = false;
    if (!sound_) return;
    std::copy_n(rest_.begin(), out.size(), out.begin());
    rest_ = rest_.subspan(out.size());
  }
  std::uint64_t number(std::size_t bytes) {
    std::array<std::uint8_t, 8> digits{};
    take(std::span(digits).first(bytes));
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      number |= std::uint64_t{digits[i]} << (8 * i);
    return number;
  }
  std::string text(std::size_t bytes) {
    std::string text(std::min(bytes, rest_.size()), '\0');
    if (text.size() != bytes) sound_ = false;
    take({reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
    return text;
  }
  [[nodiscard]] bool ended() const { return sound_ && rest_.empty(); }
  [[nodiscard]] bool sound() const { return sound_; }

 private:
  std::span<const std::uint8_t> rest_;
  bool sound_ = true;
};

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

}  // namespace

Invitation make_invitation(const ClusterKey& key, std::vector<Address> addresses, TimeUs expires_at) {
  const Nonce random = random_nonce();
  Invitation invitation;
  std::copy_n(random.begin(), invitation.id.size(), invitation.id.begin());
  invitation.expires_at = expires_at;
  invitation.listening_key = key.listening_keys().public_key;
  invitation.secret = invitation_secret(key, invitation.id, expires_at);
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
    append(text, {reinterpret_cast<const std::uint8_t*>(place.data()), place.size()});
  }
  append(text, check_of(text));
  std::string line(sodium_base64_encoded_len(text.size(), text_form), '\0');
  sodium_bin2base64(line.data(), line.size(), text.data(), text.size(), text_form);
  line.pop_back();  // the final zero
  sodium_memzero(text.data(), text.size());
  return std::string(invitation_prefix) + line;
}

std::expected<Invitation, std::string> parse_invitation(std::string_view line) {
  line = trimmed(line, " \t\r\n");
  const std::string_view family = invitation_prefix.substr(0, invitation_prefix.find('1'));
  if (!line.starts_with(family)) {
    return std::unexpected("this is no invitation, which starts with '" + std::string(invitation_prefix) + "'" +
                           advice);
  }
  if (!line.starts_with(invitation_prefix)) {
    return std::unexpected(
        "this invitation was made by another version of Gossamer: bring both machines to the same version, and ask for "
        "a new one (gossamerctl invite)");
  }
  line.remove_prefix(invitation_prefix.size());
  const std::string garbled = std::string("this invitation is cut off or garbled") + advice;
  // libsodium takes some bytes above 127 for '_'.
  const auto is_text = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  if (line.empty() || line.size() > max_invitation_characters || !std::ranges::all_of(line, is_text)) {
    return std::unexpected(garbled);
  }
  Text text(line.size());
  std::size_t filled = 0;
  const bool decoded =
      sodium_base642bin(text.data(), text.size(), line.data(), line.size(), nullptr, &filled, nullptr, text_form) == 0;
  std::optional<Invitation> invitation;
  if (decoded && filled > check_bytes) {
    const auto content = std::span(text).first(filled - check_bytes);
    const auto check = std::span(text).subspan(content.size(), check_bytes);
    if (std::ranges::equal(check, check_of(content))) invitation = read_fields(content);
  }
  sodium_memzero(text.data(), text.size());
  if (!invitation) return std::unexpected(garbled);
  return std::move(*invitation);
}

Secret invitation_secret(const ClusterKey& key, const InvitationId& id, TimeUs expires_at) {
  Transcript transcript("gossamer invitation 1", key.invitation_key());
  transcript.add_bytes(id);
  transcript.add_number(static_cast<std::uint64_t>(expires_at));
  return transcript.secret();
}

InvitationClaim make_claim(const Invitation& invitation, const PublicKey& own_key) {
  InvitationClaim claim{invitation.id, invitation.expires_at, own_key, random_nonce(), {}};
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
    return same(claim_proof(invitation_secret(key, claim.invitation, claim.expires_at), claim), claim.proof);
  });
}

std::string date_text(TimeUs time_of_day) {
  const std::time_t seconds = static_cast<std::time_t>(time_of_day / us_per_s);
  std::tm parts{};
  std::array<char, 64> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts) == 0) {
    return "an unknown time";
  }
  return text.data();
}

}  // namespace gossamer::peer
