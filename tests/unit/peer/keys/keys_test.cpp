// Tests identities and cluster keys: what is kept in files, and which files are refused.

#include "peer/keys/keys.hpp"

#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "catch.hpp"
#include "peer/keys/cluster_keys.hpp"
#include "peer/limits.hpp"
#include "temporary_folder.hpp"

using namespace gossamer;
using namespace gossamer::peer;
namespace fs = std::filesystem;

namespace {

void write_file(const fs::path& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}
std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr const char* hex_key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
constexpr const char* base64_key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";  // the same
constexpr const char* other_key = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

}  // namespace

TEST_CASE("an identity is made once and found again") {
  const TemporaryFolder folder;
  const auto first = load_or_create_identity(folder.path() / "state");
  REQUIRE(first);
  const auto second = load_or_create_identity(folder.path() / "state");
  REQUIRE(second);
  CHECK(first->node == second->node);
  CHECK(first->keys.public_key == second->keys.public_key);
  CHECK(first->keys.secret_key.same_as(second->keys.secret_key));
  struct stat info {};
  REQUIRE(::stat((folder.path() / "state" / node_key_file_name).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(std::distance(fs::directory_iterator(folder.path() / "state"), {}) == 1);  // no temporary file is left
  CHECK(load_or_create_identity(folder.path() / "other")->node != first->node);
}

TEST_CASE("the node id is the first half of BLAKE2b-256 of the public key") {
  const Identity identity = Identity::generate();
  std::array<unsigned char, 32> hash{};
  crypto_generichash_blake2b(hash.data(), hash.size(), identity.keys.public_key.data(), 32, nullptr, 0);
  CHECK(std::equal(identity.node.bytes.begin(), identity.node.bytes.end(), hash.begin()));
  CHECK(hex(identity.keys.public_key).size() == 64);
  // The secret key determines the public key.
  CHECK(KeyPair::from_secret(identity.keys.secret_key).public_key == identity.keys.public_key);
}

TEST_CASE("a node key that others can read is refused") {
  const TemporaryFolder folder;
  REQUIRE(load_or_create_identity(folder.path()));
  const fs::path file = folder.path() / node_key_file_name;
  for (const mode_t mode : {0640, 0604, 0660, 0644, 0601}) {
    REQUIRE(::chmod(file.c_str(), mode) == 0);
    const auto loaded = load_or_create_identity(folder.path());
    REQUIRE_FALSE(loaded);
    CHECK(contains(loaded.error(), "chmod 600"));
  }
}

TEST_CASE("a node key file with anything else in it is refused and kept") {
  const TemporaryFolder folder;
  REQUIRE(load_or_create_identity(folder.path()));
  const fs::path file = folder.path() / node_key_file_name;
  const std::string sound = read_file(file);
  std::string flipped = sound;
  flipped[sound.size() - 5] = 'g';
  for (const std::string& text : {std::string{}, std::string("hello\n"), sound.substr(0, sound.size() - 1),
                                  sound.substr(0, 30), sound + "x", flipped, std::string(100'000, 'x')}) {
    write_file(file, text);
    const auto loaded = load_or_create_identity(folder.path());
    REQUIRE_FALSE(loaded);
    CHECK(contains(loaded.error(), file.string()));
    CHECK_FALSE(contains(loaded.error(), sound.substr(21, 20)));
    CHECK(read_file(file) == text);
  }
  write_file(file, sound);
  CHECK(load_or_create_identity(folder.path()));
}

TEST_CASE("a folder where the key file should be, and a state folder that is a file") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "a" / node_key_file_name);
  const auto directory = load_or_create_identity(folder.path() / "a");
  REQUIRE_FALSE(directory);
  CHECK(contains(directory.error(), "not a regular file"));
  write_file(folder.path() / "b", "");
  CHECK_FALSE(load_or_create_identity(folder.path() / "b"));
}

TEST_CASE("a full disk is said to be one") {
  // /dev/full cannot hold folders, so root fills a small file system. For other users, a folder without write
  // permission stands for the other errors.
  if (::geteuid() == 0) {
    const TemporaryFolder folder;
    const std::string command =
        "mount -t tmpfs -o size=4k,nr_inodes=16 none " + folder.path().string() + " 2>/dev/null";
    if (std::system(command.c_str()) != 0) {
      WARN("no file system of its own can be mounted here");
      return;
    }
    write_file(folder.path() / "filler", std::string(8192, 'x'));
    const auto loaded = load_or_create_identity(folder.path());
    CHECK_FALSE(loaded);
    if (!loaded) CHECK(contains(loaded.error(), "free some space"));
    CHECK_FALSE(fs::exists(folder.path() / node_key_file_name));
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
    CHECK(std::system(("umount " + folder.path().string()).c_str()) == 0);
  } else {
    const TemporaryFolder folder;
    REQUIRE(::chmod(folder.path().c_str(), 0500) == 0);
    const auto loaded = load_or_create_identity(folder.path());
    REQUIRE(::chmod(folder.path().c_str(), 0700) == 0);
    REQUIRE_FALSE(loaded);
    CHECK(contains(loaded.error(), "must be writable"));
  }
}

TEST_CASE("cluster keys: base64, hexadecimal, comments, a ring") {
  const auto one = parse_cluster_keys(base64_key);
  REQUIRE(one);
  CHECK(one->all().size() == 1);
  for (std::uint8_t i = 0; i < 32; ++i)
    CHECK(one->first().key.bytes()[i] == i);

  const auto ring =
      parse_cluster_keys(std::string("# ours\n\n  ") + hex_key + " # the present one\r\n" + other_key + "\n");
  REQUIRE(ring);
  REQUIRE(ring->all().size() == 2);
  CHECK(ring->first().key.same_as(one->first().key));
}

TEST_CASE("cluster keys: what is refused, by line, without showing the key") {
  std::string many;
  for (std::size_t i = 0; i <= max_cluster_keys; ++i) {
    std::string key = other_key;
    key[63] = static_cast<char>('0' + i);
    many += key + "\n";
  }
  struct Case {
    std::string text, expected;
  };
  const std::vector<Case> cases{
      {"", "no key"},
      {"# nothing\n", "no key"},
      {std::string(hex_key) + "0", "line 1"},
      {std::string("\n") + std::string(hex_key).substr(1), "line 2"},
      {std::string(base64_key).substr(0, 43), "line 1"},
      {std::string(44, '!'), "line 1"},
      {std::string(64, '0'), "zeros"},
      {std::string(hex_key) + "\n" + base64_key, "repeats"},
      {many, "more than"},
  };
  for (const Case& c : cases) {
    const auto keys = parse_cluster_keys(c.text);
    REQUIRE_FALSE(keys);
    INFO(keys.error());
    CHECK(contains(keys.error(), c.expected));
    CHECK_FALSE(contains(keys.error(), "0102030405"));
  }
}

TEST_CASE("cluster key files: made, found again, not overwritten, not read by others") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cluster.key";
  CHECK_FALSE(read_cluster_keys(file));
  const auto made = load_or_create_cluster_keys(file);
  REQUIRE(made);
  const auto found = load_or_create_cluster_keys(file);
  REQUIRE(found);
  CHECK(made->first().key.same_as(found->first().key));
  REQUIRE(::chmod(file.c_str(), 0644) == 0);
  const auto open = read_cluster_keys(file);
  REQUIRE_FALSE(open);
  CHECK(contains(open.error(), "chmod 600"));
}

TEST_CASE("what is derived from a cluster key differs by use and by key") {
  const ClusterKey a = ClusterKey::generate();
  const ClusterKey b = ClusterKey::generate();
  CHECK(a.listening_keys().public_key == a.listening_keys().public_key);
  CHECK(a.listening_keys().public_key != b.listening_keys().public_key);
  CHECK_FALSE(a.hello_key().same_as(b.hello_key()));
  CHECK_FALSE(a.hello_key().same_as(a.listening_keys().secret_key));
  CHECK_FALSE(a.hello_key().same_as(a.key));
}
