// Each life of a node gets a larger incarnation, whatever the clock does.

#include "daemon/cluster/incarnation.hpp"

#include <spdlog/sinks/null_sink.h>

#include <limits>

#include "gossip/membership/membership.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;

namespace {

constexpr std::uint64_t hour_us = std::uint64_t{3600} * 1'000'000;
constexpr std::uint64_t now_us = std::uint64_t{500'000} * hour_us;

struct Fixture {
  test::TemporaryFolder temporary;
  std::filesystem::path path = temporary.path() / "state";
  spdlog::logger log{"test", std::make_shared<spdlog::sinks::null_sink_st>()};
  StateFolder state = *StateFolder::open(path);

  std::uint64_t start(std::uint64_t time_of_day_us) { return next_incarnation(state, time_of_day_us, log); }
};

}  // namespace

TEST_CASE("incarnations follow the clock while it goes up") {
  struct Row {
    std::uint64_t previous, time, expected;
  };
  constexpr std::uint64_t most = gossamer::gossip::last_incarnation;
  for (const Row& row :
       {Row{0, now_us, now_us}, Row{now_us, now_us + 1, now_us + 1}, Row{now_us, now_us, now_us + incarnation_gap},
        Row{now_us, now_us - hour_us, now_us + incarnation_gap}, Row{now_us, 0, now_us + incarnation_gap},
        Row{most - 5, now_us, most}, Row{most, 1, most}, Row{most + 1, now_us, now_us}, Row{0, 5, first_sound_clock_us},
        Row{0, 2 * last_sound_clock_us, first_sound_clock_us},
        Row{now_us, 2 * last_sound_clock_us, now_us + incarnation_gap}}) {
    CHECK(incarnation_after(row.previous, row.time) == row.expected);
  }
}

TEST_CASE("no clock numbers a start so that other nodes do not believe it") {
  using gossamer::gossip::last_incarnation;
  CHECK(last_sound_clock_us < last_incarnation);
  CHECK(incarnation_after(0, std::numeric_limits<std::uint64_t>::max()) <= last_incarnation);
}

TEST_CASE("a clock that was set back does not bring an earlier incarnation back") {
  Fixture node;
  CHECK(node.start(now_us) == now_us);
  const std::uint64_t second = node.start(now_us - hour_us);
  CHECK(second > now_us);
  const std::uint64_t third = node.start(now_us - hour_us + 1);
  CHECK(third > second);
  CHECK(node.start(third + 1) == third + 1);  // the clock has caught up
}

TEST_CASE("what is not an incarnation in the file does not keep a node from starting") {
  Fixture node;
  for (const char* text : {"", "\n", "x\n", "-1\n", "12", "12 \n", "99999999999999999999999\n"}) {
    REQUIRE(node.state.store("incarnation", text));
    CHECK(node.start(now_us) == now_us);
  }
  // A folder in the file's place: the file cannot be replaced either.
  std::filesystem::remove(node.path / "incarnation");
  std::filesystem::create_directory(node.path / "incarnation");
  CHECK(node.start(now_us) == now_us);
}
