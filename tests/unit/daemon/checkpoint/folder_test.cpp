// The folder of checkpoints: what is found there, and what is removed.

#include "daemon/checkpoint/folder.hpp"

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <set>

#include "tests/unit/catch.hpp"
#include "tests/unit/temporary_folder.hpp"

using namespace gossamer;
using namespace gossamer::checkpoint;
using Catch::Matchers::Contains;

namespace {

constexpr const char* own = "1234abcdffffffffffffffffffffffff";
constexpr const char* other = "99999999ffffffffffffffffffffffff";

void make(const std::filesystem::path& path, int hour = 0) {
  std::ofstream(path) << "x";
  const auto begin = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1000);
  std::filesystem::last_write_time(path, begin + std::chrono::hours(hour));
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("checkpoints are found, the furthest first, and nothing else") {
  const TemporaryFolder folder;
  const std::string far = file_name(1'000'000, own);
  CHECK(far == "00000000000001000000-1234abcd.safetensors");
  for (const std::string& name : {file_name(9, other), far, file_name(10, "import"), partial_name(own),
                                  std::string(import_name), std::string("00000000000000000009-.safetensors"),
                                  std::string("9-1234abcd.safetensors"), std::string("notes.txt")})
    make(folder.path() / name);
  std::vector<std::string> found;
  for (const auto& path : checkpoints_in(folder.path()))
    found.push_back(path.filename());
  CHECK(found == std::vector<std::string>{far, file_name(10, "import"), file_name(9, other)});
  CHECK(checkpoints_in(folder.path() / "none").empty());
}

TEST_CASE("old checkpoints of this node are removed, and nothing else") {
  const TemporaryFolder folder;
  // The job began anew, so the files written last have smaller clocks than the first ones.
  const std::vector<std::string> own_files{file_name(5000, own), file_name(6000, own), file_name(10, own),
                                           file_name(20, own)};
  for (std::size_t i = 0; i < own_files.size(); ++i)
    make(folder.path() / own_files[i], static_cast<int>(i));
  const std::set<std::string> others{file_name(1, other), file_name(2, "import"), import_name, "notes.txt",
                                     partial_name(own)};
  for (const std::string& name : others)
    make(folder.path() / name);
  const auto left = [&](std::set<std::string> names) {
    names.insert(others.begin(), others.end());
    return names;
  };
  REQUIRE(remove_old(folder.path(), own, 3, folder.path() / own_files[3]));
  CHECK(names_in(folder.path()) == left({own_files[1], own_files[2], own_files[3]}));
  // The file that was just written stays, whatever the machine's clock says.
  REQUIRE(remove_old(folder.path(), own, 1, folder.path() / own_files[1]));
  CHECK(names_in(folder.path()) == left({own_files[1]}));
}

TEST_CASE("a job's folder is made for its owner, with those above it") {
  const TemporaryFolder folder;
  const auto made = make_job_folder(folder.path() / "a" / "b", "digits");
  REQUIRE(made);
  CHECK(*made == folder.path() / "a" / "b" / "digits");
  struct stat entry {};
  REQUIRE(::stat(made->c_str(), &entry) == 0);
  CHECK((entry.st_mode & 0777) == 0700);
  CHECK(make_job_folder(folder.path() / "a" / "b", "digits"));
  make(folder.path() / "file");
  CHECK_THAT(make_job_folder(folder.path() / "file", "digits").error(), Contains("Not a directory"));
}
