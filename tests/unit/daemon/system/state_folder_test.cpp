// The state folder: one owner, whole files, errors that say what to do.

#include "daemon/system/state_folder.hpp"

#include <sys/mount.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

namespace {

mode_t rights(const std::filesystem::path& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

}  // namespace

TEST_CASE("the folder is made for its owner only, and files in it likewise") {
  const test::TemporaryFolder temporary;
  const std::filesystem::path path = temporary.path() / "a" / "state";
  const auto folder = StateFolder::open(path);
  REQUIRE(folder);
  CHECK(rights(path) == 0700);
  REQUIRE(folder->store("x", "first"));
  CHECK(rights(path / "x") == 0600);
  REQUIRE(folder->store("x", std::string("se\0cond", 7)));
  CHECK(**folder->load("x") == std::string("se\0cond", 7));
  CHECK_FALSE(std::filesystem::exists(path / "x.new"));
  CHECK_FALSE(folder->load("y")->has_value());
}

TEST_CASE("a second daemon with the same state folder is told who holds it") {
  const test::TemporaryFolder temporary;
  {
    const auto first = StateFolder::open(temporary.path());
    REQUIRE(first);
    const auto second = StateFolder::open(temporary.path());
    REQUIRE_FALSE(second);
    CHECK_THAT(second.error(), Contains("in use by process " + std::to_string(::getpid())));
    CHECK_THAT(second.error(), Contains("[node] state_dir"));
    const auto moved = std::move(*const_cast<std::expected<StateFolder, std::string>&>(first));
    CHECK_FALSE(StateFolder::open(temporary.path()));
  }
  CHECK(StateFolder::open(temporary.path()));
}

TEST_CASE("a state folder that cannot be is an error that says what to do") {
  const test::TemporaryFolder temporary;
  test::write_file(temporary.path() / "file", "");
  CHECK_THAT(StateFolder::open(temporary.path() / "file").error(), Contains("state folder"));
  CHECK_THAT(StateFolder::open(temporary.path() / "file" / "below").error(), Contains("state folder"));
  CHECK_THAT(StateFolder::open("/proc/gossamer").error(), Contains("state folder"));
}

TEST_CASE("a file that is too large or no file is refused") {
  const test::TemporaryFolder temporary;
  const auto folder = StateFolder::open(temporary.path());
  REQUIRE(folder);
  test::write_file(temporary.path() / "big", std::string(StateFolder::max_file_bytes + 1, 'x'));
  CHECK_THAT(folder->load("big").error(), Contains("more than"));
  std::filesystem::create_directory(temporary.path() / "sub");
  CHECK_THAT(folder->load("sub").error(), Contains("no ordinary file"));
  REQUIRE(::mkfifo((temporary.path() / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(folder->load("pipe").error(), Contains("no ordinary file"));  // the call does not wait for a writer
  CHECK_THAT(folder->store("sub", "x").error(), Contains("cannot be written"));
  CHECK_FALSE(std::filesystem::exists(temporary.path() / "sub.new"));
}

TEST_CASE("nothing is written so that a file that has lost its content can be told from it") {
  const test::TemporaryFolder folder;
  const auto state = StateFolder::open(folder.path());
  REQUIRE(state);
  REQUIRE(state->store("none", ""));
  CHECK(*state->load("none") == "");
  std::ofstream(folder.path() / "lost").flush();
  std::ofstream(folder.path() / "half.new").flush();
  CHECK(state->empty_files() == std::vector<std::string>{"lost"});
  CHECK(*state->load("lost") == "");
}

TEST_CASE("a file of another user is refused") {
  if (::geteuid() != 0) return;  // only root may give files away
  const test::TemporaryFolder folder;
  const auto state = StateFolder::open(folder.path());
  REQUIRE(state);
  REQUIRE(state->store("denials", "x\n"));
  CHECK(state->load("denials"));
  REQUIRE(::chown((folder.path() / "denials").c_str(), ::geteuid() + 1, ::getegid()) == 0);
  const auto refused = state->load("denials");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().find("belongs to another user; change its owner") != std::string::npos);
}

TEST_CASE("a full or read-only disk is reported, and the old file stays") {
  const test::TemporaryFolder temporary;
  const auto disk = temporary.path() / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    WARN("cannot mount: not root");
    return;
  }
  {
    const auto folder = StateFolder::open(disk / "state");
    REQUIRE(folder);
    REQUIRE(folder->store("x", "old"));
    const auto full = folder->store("x", std::string(256 * 1024, 'x'));
    REQUIRE_FALSE(full);
    CHECK_THAT(full.error(), Contains("No space left") && Contains("free some space"));
    CHECK(**folder->load("x") == "old");
  }
  test::write_file(disk / "fill", std::string(256 * 1024, 'x'));
  CHECK_THAT(StateFolder::open(disk / "other").error(), Contains("No space left") && Contains("free some space"));
  REQUIRE(::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0);
  CHECK_THAT(StateFolder::open(disk / "state").error(), Contains("Read-only") && Contains("[node] state_dir"));
  CHECK(::umount2(disk.c_str(), MNT_DETACH) == 0);
}
