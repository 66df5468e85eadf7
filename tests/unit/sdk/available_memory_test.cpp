// How much memory is available, by the kernel's files.

#include "sdk/c/available_memory.hpp"

#include <fstream>

#include "catch.hpp"
#include "tests/unit/temporary_folder.hpp"

using namespace gossamer::client;

TEST_CASE("the machine's available memory") {
  CHECK(machine_available_bytes("MemTotal: 100 kB\nMemAvailable:   24 kB\nSwapFree: 7 kB\n") == 24 * 1024);
  CHECK(machine_available_bytes("MemTotal: 100 kB\n") == std::nullopt);
  CHECK(machine_available_bytes("MemAvailable: many\n") == std::nullopt);
  CHECK(machine_available_bytes("") == std::nullopt);
}

TEST_CASE("what a control group leaves") {
  struct Row {
    const char* maximum;
    const char* current;
    const char* statistics;
    std::optional<std::uint64_t> expected;
  };
  const Row rows[] = {
      {"1000\n", "400\n", "anon 300\n", 600},
      {"1000\n", "400\n", "inactive_file 100\nactive_file 50\n", 750},
      {"1000\n", "400\n", "inactive_file 500\n", 1000},
      {"300\n", "400\n", "", 0},
      {"max\n", "400\n", "", std::nullopt},
      {"1000\n", "400\n", "inactive_file 0\nactive_file 0\ntotal_inactive_file 100\ntotal_active_file 50\n", 750},
      {"9223372036854771712\n", "400\n", "", std::nullopt},  // version 1 without a limit
      {"", "", "", std::nullopt},
  };
  for (const Row& row : rows) {
    INFO(row.maximum << row.current << row.statistics);
    CHECK(group_available_bytes(row.maximum, row.current, row.statistics) == row.expected);
  }
}

namespace {

/// A machine with a megabyte of memory and control groups. Its files are in a folder.
struct Machine {
  explicit Machine(const std::string& groups) {
    write("proc/meminfo", "MemAvailable: 1024 kB\n");
    write("proc/self/cgroup", groups);
  }
  void write(const std::filesystem::path& path, const std::string& text) const {
    std::filesystem::create_directories((folder.path() / path).parent_path());
    std::ofstream(folder.path() / path) << text;
  }
  [[nodiscard]] std::optional<std::uint64_t> available() const { return available_memory_bytes(folder.path()); }
  gossamer::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("what control groups of version 2 leave, the process's own and those above") {
  const Machine machine("0::/a/b\n");
  CHECK(machine.available() == 1 << 20);
  machine.write("sys/fs/cgroup/a/b/memory.max", "5000\n");
  machine.write("sys/fs/cgroup/a/b/memory.current", "1000\n");
  CHECK(machine.available() == 4000);
  machine.write("sys/fs/cgroup/a/memory.max", "3000\n");
  machine.write("sys/fs/cgroup/a/memory.current", "2000\n");
  CHECK(machine.available() == 1000);
}

TEST_CASE("what control groups of version 1 leave, alone and beside version 2") {
  const std::string groups =
      GENERATE("7:cpu,cpuacct:/other\n4:memory:/a/b\n1:name=systemd:/c\n", "4:hugetlb,memory:/a/b\n0::/init.scope\n");
  const Machine machine(groups);
  CHECK(machine.available() == 1 << 20);
  const std::filesystem::path own = "sys/fs/cgroup/memory/a/b";
  machine.write(own / "memory.limit_in_bytes", "5000\n");
  machine.write(own / "memory.usage_in_bytes", "1000\n");
  machine.write(own / "memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  CHECK(machine.available() == 4500);
  // In a container, its own group is at the mount point, whatever path the host has for it.
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "900\n");
  machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
  CHECK(machine.available() == 800);
}

TEST_CASE("this machine says something") {
  const auto available = available_memory_bytes();
  REQUIRE(available);
  CHECK(*available > 0);
}
