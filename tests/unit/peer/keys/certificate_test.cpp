// Certificates: what is signed is as documented, the authority certifies what its warrants allow and nothing else, and
// damaged bytes are refused.

#include "peer/keys/certificate.hpp"

#include <functional>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "node_id.hpp"
#include "peer/limits.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using gossamer::test::node_id;

namespace {

constexpr TimeUs now = 1'800'000'000 * us_per_s;
constexpr TimeUs hour = 3600 * us_per_s;

Warrant a_warrant() {
  Warrant warrant;
  warrant.invitation.fill(1);
  warrant.nodes = 3;
  warrant.rights.jobs = "lab-*";
  warrant.usable_until = now + hour;
  warrant.valid_until = now + 100 * hour;
  return warrant;
}

}  // namespace

TEST_CASE("what is signed of certificates is as written down") {
  // Computed with Python's hashlib by docs/explanation/security.md, "Certificates".
  Warrant warrant = a_warrant();
  warrant.key.fill(2);
  warrant.usable_until = 1'700'000'000'000'000;
  warrant.valid_until = 1'800'000'000'000'000;
  CHECK(hex(warrant.statement()) == "cb7e642f8b8204f6dfb54be0757cec950efa13fdb68a6f4c6c60c562fbf4b03a");
  Certificate certificate{warrant, {}, 1'600'000'000'000'000, {}};
  certificate.node.bytes.fill(7);
  CHECK(hex(certificate.statement()) == "572a67c46577b04e9bf452193ea759fa3473c490a91a7a411bb6d679273d6ade");
  CHECK(hex(rule_statement(true, 1'700'000'000'000'000)) ==
        "0c5306723b7a7560ac00f98e8d3704a0562e3f30fff834c0d0246bd0b4d21b90");
}

TEST_CASE("a certificate names one of the roles") {
  const SigningKey authority = SigningKey::generate();
  for (const NodeRole role : {NodeRole::follows, NodeRole::trains, NodeRole::keeps}) {
    CHECK(role_named(word_of(role)) == role);
    Warrant warrant = a_warrant();
    warrant.rights.role = role;
    const Certificate certificate = UsableWarrant::make(warrant, authority).certify(node_id(5), now);
    CHECK(parse_certificate(bytes_of(certificate)) == certificate);
  }
  CHECK_FALSE(role_named("operate"));
  Warrant warrant = a_warrant();
  warrant.rights.role = static_cast<NodeRole>(role_words.size());
  CHECK_FALSE(parse_certificate(bytes_of(UsableWarrant::make(warrant, authority).certify(node_id(5), now))));
}

TEST_CASE("patterns for the names of jobs are between commas") {
  for (const char* good : {"*", "vision-*,speech", "a?"})
    CHECK(jobs_problem(good).empty());
  for (const char* bad : {"", ",", "*,*,,", ",a", "a,", "a b"})
    CHECK_FALSE(jobs_problem(bad).empty());
}

TEST_CASE("the authority stands behind a certificate, and behind no change of it") {
  const SigningKey authority = SigningKey::generate();
  const UsableWarrant usable = UsableWarrant::make(a_warrant(), authority);
  const Certificate certificate = usable.certify(node_id(5), now);
  const auto flaw = [&](const Certificate& shown, TimeUs at = now) {
    return flaw_of(shown, node_id(5), authority.public_half(), at).value_or("");
  };
  CHECK(flaw(certificate).empty());
  CHECK(flaw_of(certificate, node_id(6), authority.public_half(), now));
  CHECK(flaw_of(certificate, node_id(5), SigningKey::generate().public_half(), now));
  CHECK(flaw(certificate, now + 100 * hour - 1).empty());
  CHECK(flaw(certificate, now + 100 * hour).find("expired") != std::string::npos);
  CHECK(flaw(usable.certify(node_id(5), now + hour)).empty());
  CHECK(flaw(usable.certify(node_id(5), now + hour + 1)).find("invitation had expired") != std::string::npos);
  CHECK_FALSE(flaw(certificate, now - max_ahead_us - 1).empty());
  const std::vector<std::function<void(Certificate&)>> changes{
      [](Certificate& c) { c.made_at -= 1; },
      [](Certificate& c) { c.signature[63] ^= 1; },
      [](Certificate& c) { c.warrant.nodes = 0; },
      [](Certificate& c) { c.warrant.rights.role = NodeRole::follows; },
      [](Certificate& c) { c.warrant.rights.jobs = "*"; },
      [](Certificate& c) { c.warrant.usable_until += 1; },
      [](Certificate& c) { c.warrant.valid_until += 1; },
      [](Certificate& c) { c.warrant.invitation[0] ^= 1; },
      [](Certificate& c) { c.warrant.key[0] ^= 1; },
      [](Certificate& c) { c.warrant.signature[0] ^= 1; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    Certificate changed = certificate;
    changes[i](changed);
    CHECK_FALSE(flaw(changed).empty());
  }
  Warrant for_another = a_warrant();
  for_another.node = node_id(6);
  CHECK_FALSE(flaw(UsableWarrant::make(for_another, authority).certify(node_id(5), now)).empty());
  // A certificate cannot certify another node, and only the authority makes warrants.
  Certificate stolen = certificate;
  stolen.node = node_id(9);
  CHECK(flaw_of(stolen, node_id(9), authority.public_half(), now));
  const SigningKey thief = SigningKey::generate();
  CHECK(flaw_of(UsableWarrant::make(a_warrant(), thief).certify(node_id(9), now), node_id(9), authority.public_half(),
                now));
}

TEST_CASE("a certificate survives being written and read, and no change of its bytes does") {
  const UsableWarrant usable = UsableWarrant::make(a_warrant(), SigningKey::generate());
  const Certificate certificate = usable.certify(node_id(5), now);
  const std::vector<std::uint8_t> bytes = bytes_of(certificate);
  CHECK(bytes.size() <= max_certificate_bytes);
  CHECK(parse_certificate(bytes) == certificate);
  CHECK(parse_certificate_digits(hex(bytes)) == certificate);
  CHECK_FALSE(parse_certificate_digits(hex(bytes) + "0"));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(parse_certificate(std::span(bytes).first(size)));
  std::vector<std::uint8_t> longer = bytes;
  longer.push_back(0);
  CHECK_FALSE(parse_certificate(longer));
  gossip::Random random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint8_t> changed = bytes;
    changed[random.below(changed.size())] ^= static_cast<std::uint8_t>(1U << random.below(8));
    const auto read = parse_certificate(changed);
    if (read) CHECK(bytes_of(*read) == changed);  // each certificate has only one form in bytes
  }
  Certificate unfit = certificate;
  unfit.warrant.rights.jobs = std::string(max_jobs_text_bytes + 1, 'a');
  CHECK_FALSE(parse_certificate(bytes_of(unfit)));
  unfit.warrant.rights.jobs = "a\nb";
  CHECK_FALSE(parse_certificate(bytes_of(unfit)));
}

TEST_CASE("a warrant's text holds its key") {
  const UsableWarrant usable = UsableWarrant::make(a_warrant(), SigningKey::generate());
  const std::string text = usable.text();
  const auto read = UsableWarrant::parse(text);
  REQUIRE(read);
  CHECK(read->warrant == usable.warrant);
  CHECK(read->certify(node_id(1), now) == usable.certify(node_id(1), now));
  for (std::size_t size = 0; size < text.size(); ++size)
    CHECK_FALSE(UsableWarrant::parse(text.substr(0, size)));
  CHECK_FALSE(UsableWarrant::parse(text + "A"));
  CHECK_FALSE(UsableWarrant::parse(std::string(100'000, 'A')));
  UsableWarrant other = usable;
  other.warrant.key[0] ^= 1;
  CHECK_FALSE(UsableWarrant::parse(other.text()));
}

TEST_CASE("jobs are named by patterns") {
  CHECK(Rights{}.allow_job("anything"));
  const Rights some{.jobs = "vision-?,lab-*,exact"};
  for (const char* job : {"vision-1", "lab-", "lab-7.2", "exact"})
    CHECK(some.allow_job(job));
  for (const char* job : {"vision-10", "lab", "exactly", "", "my-lab-1"})
    CHECK_FALSE(some.allow_job(job));
  CHECK_FALSE(Rights{.jobs = ""}.allow_job("any"));
}
