// The phases of a replica: each may be followed by those that docs/design.md names.

#include "gossip/replica/phase.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr std::array phases = {Phase::joining, Phase::running, Phase::drained, Phase::stopping, Phase::leaving};
constexpr std::array state_names = {"absent", "joining", "running", "draining"};

std::string name_of(Phase phase) {
  return phase_names[static_cast<std::size_t>(phase)];
}

/// The row of docs/design.md for a phase, made from the code.
std::string row_of(Phase from) {
  std::string next;
  for (const Phase to : phases) {
    if (to != from && may_follow(from, to)) next += (next.empty() ? "" : ", ") + name_of(to);
  }
  return "| `" + name_of(from) + "` | " + (next.empty() ? "nothing" : next) + " | " +
         state_names[static_cast<std::size_t>(state_of(from))] + " |";
}

}  // namespace

TEST_CASE("docs/design.md: the table of phases is the code's") {
  std::ifstream file(GOSSAMER_DOCS_DIR "/design.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const Phase phase : phases) {
    INFO(row_of(phase));
    CHECK(page.str().find("\n" + row_of(phase) + "\n") != std::string::npos);
  }
}

TEST_CASE("a phase may be entered again, and a replica that goes does not come back") {
  for (const Phase phase : phases) {
    CHECK(may_follow(phase, phase));
    CHECK_FALSE(may_follow(Phase::leaving, phase == Phase::leaving ? Phase::running : phase));
  }
  CHECK_FALSE(may_follow(Phase::stopping, Phase::running));
  CHECK(has_model(Phase::drained));
  CHECK_FALSE(has_model(Phase::joining));
}
