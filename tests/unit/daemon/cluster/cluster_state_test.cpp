// What a node keeps about its cluster: found again after a restart, and refused with advice where it is garbled.

#include "daemon/cluster/cluster_state.hpp"

#include <sys/stat.h>

#include <fstream>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/peer/rotate.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using Catch::Matchers::Contains;

namespace {

struct Kept {
  test::TemporaryFolder folder;
  StateFolder state = *StateFolder::open(folder.path() / "state");
  std::filesystem::path key_file = folder.path() / "state" / "cluster.key";

  [[nodiscard]] std::expected<ClusterState, std::string> load(bool wait_to_join = false) const {
    return ClusterState::load(state, key_file, wait_to_join);
  }
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder.path() / "state" / name) << text;
    ::chmod((folder.path() / "state" / name).c_str(), 0600);
  }
  [[nodiscard]] mode_t mode(const char* name) const {
    struct stat info {};
    REQUIRE(::stat((folder.path() / "state" / name).c_str(), &info) == 0);
    return info.st_mode & 0777;
  }
};

}  // namespace

TEST_CASE("a cluster's keys, denials and addresses are found again after a restart") {
  const Kept kept;
  auto first = kept.load();
  REQUIRE(first);
  CHECK_FALSE(first->waits_to_join());
  CHECK(first->key_ring().keys().size() == 1);
  peer::KeyRing ring = first->key_ring();
  const auto made = rotate(ring, 5);
  REQUIRE(made);
  ring.promote(*made);
  REQUIRE(first->keep(ring));
  peer::Denials denials;
  const NodeId unwanted{{1, 2, 3}};
  CHECK(denials.decide({unwanted, true, 7, "why not"}));
  REQUIRE(first->keep(denials));
  REQUIRE(first->keep_invited_by({"tcp://10.0.0.1:7946", "tcp://[fe00::1]:1"}));

  const auto second = kept.load();
  REQUIRE(second);
  CHECK(second->key_ring().notes() == ring.notes());
  CHECK(second->key_ring().first().key.fingerprint() == *made);
  CHECK(second->denials().is_denied(unwanted));
  CHECK(second->invited_by() == std::vector<std::string>{"tcp://10.0.0.1:7946", "tcp://[fe00::1]:1"});
  for (const char* name : {"cluster.key", "key_notes", "denials", "invited_by"})
    CHECK(kept.mode(name) == 0600);
}

TEST_CASE("a retired key does not come back with an old key file") {
  const Kept kept;
  auto state = kept.load();
  REQUIRE(state);
  peer::KeyRing ring = state->key_ring();
  const auto old_key = ring.first().key.fingerprint();
  const auto made = rotate(ring, 5);
  ring.promote(*made);
  const peer::ClusterKeys both = ring.cluster_keys();
  REQUIRE(ring.retire({old_key, 6}));
  REQUIRE(state->keep(ring));
  REQUIRE(peer::write_cluster_keys(kept.key_file, both));
  const auto again = kept.load();
  REQUIRE(again);
  CHECK_FALSE(again->key_ring().holds(old_key));
  std::vector<peer::ClusterKey> only_old;
  for (const peer::ClusterKey& key : both.all()) {
    if (key.fingerprint() == old_key) only_old.push_back(key);
  }
  REQUIRE(peer::write_cluster_keys(kept.key_file, peer::ClusterKeys(only_old)));
  const auto locked_out = kept.load();
  REQUIRE_FALSE(locked_out);
  CHECK_THAT(locked_out.error(), Contains("retired") && Contains("gossamerctl invite"));
}

TEST_CASE("a node that waits to join keeps no key of its own") {
  const Kept kept;
  auto waiting = kept.load(true);
  REQUIRE(waiting);
  CHECK(waiting->waits_to_join());
  CHECK_FALSE(std::filesystem::exists(kept.key_file));
  REQUIRE(waiting->keep(waiting->key_ring()));
  CHECK_FALSE(waiting->waits_to_join());
  CHECK_FALSE(kept.load(true)->waits_to_join());
}

TEST_CASE("what one cluster has decided does not get into another with a new key") {
  for (const char* name : {"key_notes", "denials", "certificates", "invited_by"}) {
    const Kept kept;
    const auto founded = kept.load();
    REQUIRE(founded);
    kept.write(name, "");
    std::filesystem::rename(kept.key_file, kept.folder.path() / "key of another");
    for (const bool wait_to_join : {false, true}) {
      const auto loaded = kept.load(wait_to_join);
      REQUIRE_FALSE(loaded);
      CHECK_THAT(loaded.error(), Contains("cluster.key is missing") && Contains(name));
    }
    CHECK_FALSE(std::filesystem::exists(kept.key_file));
    std::filesystem::remove(kept.folder.path() / "state" / name);
    CHECK(kept.load());
  }
}

TEST_CASE("garbled files about the cluster are refused with what to do") {
  const struct {
    const char* name;
    const char* text;
    const char* message;
  } cases[] = {{"key_notes", "nonsense\n", "line 1 is no note"},
               {"denials", "denied nobody 5\n", "neighbours tell who is denied"},
               {"invited_by", "not an address\n", "[overlay] peers"}};
  for (const auto& [name, text, message] : cases) {
    const Kept kept;
    REQUIRE(kept.load());
    kept.write(name, text);
    const auto loaded = kept.load();
    REQUIRE_FALSE(loaded);
    CHECK_THAT(loaded.error(), Contains(name) && Contains(message));
  }
}

TEST_CASE("a ring that cannot be kept leaves the old key file whole") {
  const Kept kept;
  auto state = kept.load();
  REQUIRE(state);
  const auto before = peer::read_cluster_keys(kept.key_file);
  REQUIRE(before);
  // The file is first written under this name. A folder in its place makes writing fail.
  std::filesystem::create_directory(kept.folder.path() / "state" / "key_notes.new");
  peer::KeyRing ring = state->key_ring();
  REQUIRE(rotate(ring, 5));
  CHECK_FALSE(state->keep(ring));
  CHECK(peer::read_cluster_keys(kept.key_file)->first().key.same_as(before->first().key));
  CHECK(peer::read_cluster_keys(kept.key_file)->all().size() == 1);
}
