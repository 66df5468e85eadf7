// The authority's key: a signature holds for its statement and its authority only, and the key's file is as secret as
// other key files.

#include "peer/keys/authority.hpp"

#include <sys/stat.h>

#include <fstream>
#include <set>

#include "catch.hpp"
#include "node_id.hpp"
#include "peer/wire/control_messages.hpp"
#include "temporary_folder.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using gossamer::test::node_id;

TEST_CASE("a signature holds for one statement of one authority") {
  const SigningKey key = SigningKey::generate();
  const Statement statement = denial_statement(node_id(1), true, 5, "sold");
  const Signature signature = key.sign(statement);
  CHECK(is_signed(key.public_half(), statement, signature));
  CHECK_FALSE(is_signed(key.public_half(), statement, std::nullopt));
  CHECK_FALSE(is_signed(SigningKey::generate().public_half(), statement, signature));
  for (std::size_t i = 0; i < signature.size(); ++i) {
    Signature changed = signature;
    changed[i] ^= 1U;
    CHECK_FALSE(is_signed(key.public_half(), statement, changed));
  }
}

TEST_CASE("no two decisions have one statement") {
  const ClusterKey one = ClusterKey::generate();
  const ClusterKey other = ClusterKey::generate();
  const std::vector<Statement> all{denial_statement(node_id(1), true, 5, "sold"),
                                   denial_statement(node_id(2), true, 5, "sold"),
                                   denial_statement(node_id(1), false, 5, "sold"),
                                   denial_statement(node_id(1), true, 6, "sold"),
                                   denial_statement(node_id(1), true, 5, "sol"),
                                   key_statement(one.digest(), 5),
                                   key_statement(other.digest(), 5),
                                   key_statement(one.digest(), 6),
                                   retirement_statement(one.fingerprint(), 5),
                                   retirement_statement(other.fingerprint(), 5),
                                   retirement_statement(one.fingerprint(), 6),
                                   rule_statement(true, 5),
                                   rule_statement(false, 5),
                                   settings_statement("job", {.version = 5}),
                                   settings_statement("job", {.version = 6}),
                                   settings_statement("jo", {.version = 5}),
                                   settings_statement("job", {.version = 5, .author = node_id(1)}),
                                   settings_statement("job", {.version = 5, .values = {{"a", "bc"}}}),
                                   settings_statement("job", {.version = 5, .values = {{"ab", "c"}}})};
  CHECK(std::set<Statement>(all.begin(), all.end()).size() == all.size());
  CHECK_FALSE(std::ranges::equal(one.digest(), one.key.bytes()));
}

TEST_CASE("statements are as written down") {
  // BLAKE2b-256 of the fields, each behind its length in 8 bytes: computed with Python's hashlib.
  NodeId node;
  node.bytes.fill(7);
  CHECK(hex(denial_statement(node, true, 1'700'000'000'000'000, "sold")) ==
        "db2d85c5ae038d036ac71b1914611cc7b2858dbbdaffd3e73380cb99c7cc2a7e");
  KeyDigest digest{};
  digest.fill(8);
  CHECK(hex(key_statement(digest, 1'700'000'000'000'000)) ==
        "716fe1d21476ac14c56e640553aae1f247149dc2c8c0067e98b747529d5a808e");
  Fingerprint fingerprint{};
  fingerprint.fill(9);
  CHECK(hex(retirement_statement(fingerprint, 1'700'000'000'000'000)) ==
        "578939127dffb3368cc82711036e41e9e400ad643f244f9ea9e54b2a816b2f38");
}

TEST_CASE("an authority's key is found again in its file, which nobody else may read, and is never replaced") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "authority.key";
  const SigningKey key = SigningKey::generate();
  REQUIRE(key.create(path));
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  const auto read = SigningKey::read(path);
  REQUIRE(read);
  CHECK(read->public_half() == key.public_half());
  const auto again = SigningKey::generate().create(path);
  REQUIRE_FALSE(again);
  CHECK_THAT(again.error(), Catch::Contains("there already"));
  CHECK(SigningKey::read(path)->public_half() == key.public_half());
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  CHECK_FALSE(SigningKey::read(path));
  CHECK_THAT(SigningKey::read(folder.path() / "none").error(), Catch::Contains("there is no"));
}

TEST_CASE("a file that is none of an authority's says so, and not what it holds") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "authority.key";
  for (const std::string text :
       {"", "# gossamer-authority", "gossamer-authority 00ff", "gossamer-authority ", "secret"}) {
    std::ofstream(path, std::ios::trunc) << text;
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    const auto read = SigningKey::read(path);
    REQUIRE_FALSE(read);
    CHECK_THAT(read.error(), Catch::Contains("gossamerctl authority create") && !Catch::Contains("secret"));
  }
}
