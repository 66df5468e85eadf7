// The decisions of `gossamerctl run`: restarts, and lines of output. tests/system/run_test.py tests it with processes.

#include <vector>

#include "tests/unit/catch.hpp"
#include "tools/ctl/run/lines.hpp"
#include "tools/ctl/run/restart_policy.hpp"

using namespace gossamer::ctl;
using Catch::Matchers::Contains;

namespace {

/// The lines that come out when `parts` come in, each a second after the one before.
std::vector<std::string> lines_of(const std::vector<std::string>& parts, double seconds_between = 1) {
  Lines lines;
  std::vector<std::string> told;
  const auto tell = [&](std::string_view line) { told.emplace_back(line); };
  double now_s = 100;
  for (const std::string& part : parts) {
    lines.add(part, now_s, tell);
    now_s += seconds_between;
  }
  lines.end(tell);
  return told;
}

using Told = std::vector<std::string>;

}  // namespace

TEST_CASE("lines are told whole, wherever what was read ended") {
  CHECK(lines_of({"a\nb\n"}) == Told{"a", "b"});
  CHECK(lines_of({"a", "b", "c\nd", "\n\n"}) == Told{"abc", "d", ""});
  CHECK(lines_of({"no end"}) == Told{"no end"});
  CHECK(lines_of({""}).empty());
  CHECK(lines_of({"a\r\n", "b\r", "\n", "c\r\r\n"}, 0) == Told{"a", "b", "c"});
}

TEST_CASE("of a progress bar a line a second is told, and how it ended") {
  CHECK(lines_of({"1 %\r", "2 %\r", "3 %\r", "4 %\n"}, 0) == Told{"1 %", "4 %"});
  CHECK(lines_of({"1 %\r", "2 %\r", "3 %\r"}, 0.6) == Told{"1 %", "3 %"});
  CHECK(lines_of({"\r1 %", "\r2 %", "\r3 %"}, 0) == Told{"1 %", "3 %"});
  CHECK(lines_of({"1 %\r", "\n"}) == Told{"1 %"});
}

TEST_CASE("a line without an end is told in pieces") {
  const std::string piece(max_line_piece_bytes, 'x');
  CHECK(lines_of({piece + piece, "y\n"}) == Told{piece, piece, "y"});
  CHECK(lines_of({piece + "\n"}) == Told{piece});
}

TEST_CASE("restarts follow the policy") {
  const auto pauses = [](const std::string& text, int status, double lived_s, int ends) {
    const auto policy = restart_policy(text, 0.5);
    REQUIRE(policy);
    Restarts restarts(*policy);
    std::vector<double> result;
    for (int i = 0; i < ends; ++i)
      result.push_back(restarts.after_end(status, lived_s).value_or(-1));
    return result;
  };
  using Pauses = std::vector<double>;
  CHECK(pauses("never", 1, 1, 1) == Pauses{-1});
  CHECK(pauses("on-failure", 0, 1, 1) == Pauses{-1});
  CHECK(pauses("on-failure", 1, 1, 4) == Pauses{0.5, 1, 2, 4});
  CHECK(pauses("on-failure:2", 137, 1, 3) == Pauses{0.5, 1, -1});
  CHECK(pauses("on-failure:2", 1, steady_life_s, 4) == Pauses{0.5, 0.5, 0.5, 0.5});
  CHECK(pauses("on-failure:0", 1, 1, 1) == Pauses{-1});
  CHECK(pauses("always", 0, 1, 2) == Pauses{0.5, 1});
  CHECK(pauses("always:1", 0, 1, 2) == Pauses{0.5, -1});
  CHECK(pauses("always", 1, 1, 100).back() == max_pause_s);
}

TEST_CASE("a restart policy that there is none of is refused, with those there are") {
  for (const std::string text : {"", "often", "on-failure:", "on-failure:x", "on-failure:1x", "on-failure:-1",
                                 "never:1", "always:99999999999"}) {
    const auto policy = restart_policy(text, 1);
    CAPTURE(text);
    REQUIRE_FALSE(policy);
    CHECK_THAT(policy.error(), Contains("on-failure or always"));
  }
}
