// Tests invitations: derived as documented, proven by members that kept nothing, and garbled lines refused with advice.

#include "peer/admission/invitation.hpp"

#include <sodium.h>

#include <algorithm>
#include <numeric>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "peer/limits.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

constexpr TimeUs expiry = 1'800'000'000 * us_per_s;

ClusterKey key_of(std::uint8_t value) {
  ClusterKey key;
  std::ranges::fill(key.key.writable(), value);
  return key;
}
InvitationId counting() {
  InvitationId id{};
  std::iota(id.begin(), id.end(), std::uint8_t{0});
  return id;
}
template <class Bytes>
std::string hex_of(const Bytes& bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}
Invitation an_invitation(const ClusterKey& key) {
  return make_invitation(key, {{"10.0.0.1", 7946}, {"fe00::1", 1}, {"host.example", 65535}}, expiry);
}

}  // namespace

TEST_CASE("an invitation's secret and a claim's proof are derived as written down") {
  // Computed with Python's hashlib from 32 bytes of 7: docs/explanation/security.md, "Invitations".
  const Secret secret = invitation_secret(key_of(7), counting(), expiry, false);
  CHECK(hex_of(secret.bytes()) == "3a355ae4fea9968a276782d231ebb4c899dd494d915f99b5fb804dafda642662");
  InvitationClaim claim{counting(), expiry, {}, {}, {}, {}};
  claim.public_key.fill(9);
  claim.nonce.fill(5);
  CHECK(hex_of(claim_proof(secret, claim)) == "e99689edf95c0130c71e450c7f0dc51369ef35233238f08e00622561fa491c6e");
}

TEST_CASE("a line survives being written and read, with space around it") {
  const ClusterKey key = ClusterKey::generate();
  const Invitation made = an_invitation(key);
  const std::string line = invitation_line(made);
  CHECK(line.starts_with("gossamer-invite-1:"));
  CHECK(line.find_first_of(" \n=+/") == std::string::npos);
  const auto read = parse_invitation("\t " + line + " \r\n");
  REQUIRE(read);
  CHECK(read->id == made.id);
  CHECK(read->expires_at == expiry);
  CHECK(read->listening_key == key.listening_keys().public_key);
  CHECK(read->secret.same_as(made.secret));
  CHECK(read->addresses == made.addresses);
  CHECK(an_invitation(key).id != made.id);
}

TEST_CASE("an invitation holds neither the cluster key nor what else follows from it") {
  const ClusterKey key = ClusterKey::generate();
  const Invitation made = an_invitation(key);
  CHECK_FALSE(made.secret.same_as(key.key));
  CHECK_FALSE(made.secret.same_as(key.invitation_key()));
  CHECK_FALSE(made.secret.same_as(key.hello_key()));
}

TEST_CASE("addresses of an invitation are bounded, and the longest fit") {
  const Address longest{std::string(250, 'h'), 7946};
  const std::string line =
      invitation_line(make_invitation(ClusterKey::generate(), std::vector<Address>(100, longest), expiry));
  CHECK(line.size() < max_invitation_characters);
  const auto read = parse_invitation(line);
  REQUIRE(read);
  CHECK(read->addresses.size() == max_invitation_addresses);
}

TEST_CASE("a claim is proven by its invitation alone, and a change of any field breaks it") {
  const ClusterKey key = ClusterKey::generate();
  const ClusterKey other = ClusterKey::generate();
  const Identity joiner = Identity::generate();
  const Invitation made = an_invitation(key);
  const InvitationClaim claim = make_claim(made, joiner.keys.public_key);
  CHECK(is_claim_proven(ClusterKeys({key}), claim));
  CHECK(is_claim_proven(ClusterKeys({other, key}), claim));
  CHECK_FALSE(is_claim_proven(ClusterKeys({other}), claim));
  const std::vector<std::function<void(InvitationClaim&)>> changes{
      [](InvitationClaim& c) { c.invitation[0] ^= 1; }, [](InvitationClaim& c) { c.expires_at += us_per_s; },
      [](InvitationClaim& c) { c.public_key[31] ^= 1; }, [](InvitationClaim& c) { c.nonce[0] ^= 1; },
      [](InvitationClaim& c) { c.proof[31] ^= 0x80; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    InvitationClaim changed = claim;
    changes[i](changed);
    CAPTURE(i);
    CHECK_FALSE(is_claim_proven(ClusterKeys({key}), changed));
  }
  // The holder of the line cannot change its end, because the secret depends on it.
  Invitation longer = made;
  longer.expires_at += us_per_s;
  CHECK_FALSE(is_claim_proven(ClusterKeys({key}), make_claim(longer, joiner.keys.public_key)));
}

TEST_CASE("an invitation with a warrant is used with it only") {
  const ClusterKey key = ClusterKey::generate();
  Invitation made = make_invitation(key, {{"10.0.0.1", 7946}}, expiry, true);
  const std::string half = invitation_line(made);
  CHECK(parse_invitation(half).error().find("garbled") != std::string::npos);
  Warrant warrant;
  warrant.invitation = made.id;
  warrant.rights.jobs = std::string(max_jobs_text_bytes, 'j');
  warrant.usable_until = expiry;
  made.warrant = UsableWarrant::make(warrant, SigningKey::generate());
  const std::string line = invitation_line(made);
  CHECK(line == half + "." + made.warrant->text());  // gossamerctl puts it together in this way
  const auto read = parse_invitation(" " + line + "\n");
  REQUIRE(read);
  CHECK(read->secret.same_as(made.secret));
  CHECK(read->warrant->warrant == made.warrant->warrant);
  for (std::size_t size = warranted_prefix.size(); size < line.size(); ++size)
    CHECK_FALSE(parse_invitation(line.substr(0, size)));
  CHECK_FALSE(parse_invitation(line + "." + made.warrant->text()));
  std::string older = line.substr(0, half.size());
  older.replace(older.find('2'), 1, "1");
  const auto without = parse_invitation(older);  // without the warrant, and without the mark that it needs one
  REQUIRE(without);

  const Identity joiner = Identity::generate();
  const auto certificate = read->warrant->certify(joiner.node, expiry);
  CHECK(is_claim_proven(ClusterKeys({key}), make_claim(*read, joiner.keys.public_key, certificate)));
  CHECK_FALSE(is_claim_proven(ClusterKeys({key}), make_claim(*read, joiner.keys.public_key)));
  CHECK_FALSE(is_claim_proven(ClusterKeys({key}), make_claim(*without, joiner.keys.public_key)));
}

TEST_CASE("what is no invitation is refused with what to do, and nothing of it is repeated") {
  const std::string line = invitation_line(an_invitation(ClusterKey::generate()));
  const auto error_of = [](const std::string& text) {
    const auto read = parse_invitation(text);
    return read ? std::string() : read.error();
  };
  CHECK(error_of("").find("no invitation") != std::string::npos);
  CHECK(error_of("c3VwZXIgc2VjcmV0").find("no invitation") != std::string::npos);
  CHECK(error_of("c3VwZXIgc2VjcmV0").find("c3Vw") == std::string::npos);
  std::string newer = line;
  newer.replace(newer.find('1'), 1, "3");
  CHECK(error_of(newer).find("another version") != std::string::npos);
  CHECK(error_of(line + line).find("garbled") != std::string::npos);
  CHECK(error_of(line + std::string(10'000, 'A')).find("garbled") != std::string::npos);
  for (std::size_t length = invitation_prefix.size(); length < line.size(); ++length) {
    const std::string error = error_of(line.substr(0, length));
    CHECK(error.find("garbled") != std::string::npos);
    CHECK(error.find("gossamerctl invite") != std::string::npos);
  }
}

TEST_CASE("random damage to a line never gives an invitation") {
  const std::string line = invitation_line(an_invitation(ClusterKey::generate()));
  gossip::Random random(11);
  for (int round = 0; round < 5000; ++round) {
    std::string text = line;
    const std::size_t at = invitation_prefix.size() + random.below(line.size() - invitation_prefix.size());
    text[at] = static_cast<char>(random.next());
    if (text == line || text.find_first_of(" \t\r\n", at) == text.size() - 1) continue;
    CAPTURE(at, static_cast<int>(text[at]), line[at]);
    CHECK_FALSE(parse_invitation(text));
  }
}

TEST_CASE("fields that lie are refused behind a sound checksum") {
  // The line is made by hand, so that only the fields are wrong.
  const auto line_of = [](std::vector<std::uint8_t> bytes) {
    std::array<std::uint8_t, 32> hash{};
    crypto_generichash(hash.data(), hash.size(), bytes.data(), bytes.size(), nullptr, 0);
    bytes.insert(bytes.end(), hash.begin(), hash.begin() + 4);
    std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_URLSAFE_NO_PADDING), '\0');
    sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(), sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    text.pop_back();
    return std::string(invitation_prefix) + text;
  };
  const std::vector<std::uint8_t> head(16 + 8 + 32 + 32, 1);
  const auto with = [&](std::vector<std::uint8_t> tail) {
    std::vector<std::uint8_t> bytes = head;
    bytes.insert(bytes.end(), tail.begin(), tail.end());
    return line_of(std::move(bytes));
  };
  CHECK(parse_invitation(with({1, 3, 0, 'a', ':', '1'})));
  CHECK_FALSE(parse_invitation(with({})));
  CHECK_FALSE(parse_invitation(with({0})));
  CHECK_FALSE(parse_invitation(with({2, 3, 0, 'a', ':', '1'})));
  CHECK_FALSE(parse_invitation(with({1, 3, 0, 'a', ':', '1', 0})));
  CHECK_FALSE(parse_invitation(with({1, 4, 0, 'a', ':', '1'})));
  CHECK_FALSE(parse_invitation(with({1, 255, 255, 'a', ':', '1'})));
  CHECK_FALSE(parse_invitation(with({1, 3, 0, 'a', ':', '0'})));
  CHECK_FALSE(parse_invitation(with({1, 3, 0, '\n', ':', '1'})));
  CHECK_FALSE(parse_invitation(with({9, 3, 0, 'a', ':', '1'})));
}
