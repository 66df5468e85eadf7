// What the kernel's texts say about memory.

#include "sdk/c/available_memory.hpp"

#include "catch.hpp"

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
      {"", "", "", std::nullopt},
  };
  for (const Row& row : rows) {
    INFO(row.maximum << row.current << row.statistics);
    CHECK(group_available_bytes(row.maximum, row.current, row.statistics) == row.expected);
  }
}

TEST_CASE("this machine says something") {
  const auto available = available_memory_bytes();
  REQUIRE(available);
  CHECK(*available > 0);
}
