// What a node goes on with when clients come back from a daemon that died: which copy, and whose progress.

#include "gossip/group/reunion.hpp"

#include "catch.hpp"

using namespace gossamer::gossip;

namespace {

using Kind = Standing::Kind;

/// "2" the copy that client 2 was handed, "2p" its own publication, "-" nothing.
std::string text(const std::optional<CopyAt>& at) {
  if (!at) return "-";
  return std::to_string(at->client) + (at->publication ? "p" : "");
}
std::string text(const Reunion& reunion) {
  std::string all = text(reunion.newest) + ":";
  for (const auto& since : reunion.progress_since)
    all += " " + text(since);
  return all;
}

}  // namespace

TEST_CASE("a node goes on with the newest copy that any client was handed, and what is not in it") {
  const struct {
    const char* what;
    std::vector<Standing> clients;
    const char* expected;
  } cases[] = {
      {"nothing is known", {{}, {}}, "-: - -"},
      {"all have it in hand", {{Kind::holds, 7}, {Kind::holds, 7}}, "0: - -"},
      {"all have published since", {{Kind::moved, 7}, {Kind::moved, 7}}, "0: 0 1"},
      {"one is slow", {{Kind::holds, 6}, {Kind::moved, 7}}, "1: - 1"},
      {"and has published, late", {{Kind::moved, 6}, {Kind::moved, 7}}, "1: 0 1"},
      {"killed between two words: the other's publication is in it", {{Kind::holds, 8}, {Kind::moved, 7, 8}}, "0: - -"},
      {"killed before both: in none that was handed out", {{Kind::moved, 7, 8}, {Kind::moved, 7, 8}}, "0: 0 1"},
      {"while the first correction was written: the other was handed the same",
       {{Kind::moved, 7, 8, true}, {Kind::moved, 7, 8}},
       "1: 1 1"},
      {"likewise, and the other has it still", {{Kind::moved, 7, 8, true}, {Kind::holds, 7}}, "1: 1 -"},
      {"and nobody was handed the same: its progress is lost",
       {{Kind::moved, 6, 8, true}, {Kind::moved, 7, 8}},
       "1: - 1"},
      {"written over at all: the mean of their publications",
       {{Kind::moved, 7, 8, true}, {Kind::moved, 7, 8, true}},
       "0p: - 0p"},
      {"one went on alone: what it holds is the copy", {{Kind::moved, 6}, {Kind::alone, 90}}, "1: 0 -"},
      {"a copy as good as what one did alone", {{Kind::alone, 7}, {Kind::holds, 7}}, "1: - -"},
      {"one of which nothing is known", {{}, {Kind::moved, 7}}, "1: - 1"},
  };
  for (const auto& one : cases) {
    INFO(one.what);
    CHECK(text(reunite(one.clients)) == one.expected);
  }
}

TEST_CASE("the snapshot that is written over first is one that nobody will miss, if there is one") {
  const std::vector<std::size_t> first_two = {0, 1};
  const auto chosen = [&](const std::vector<Standing>& clients) { return safest_to_overwrite(clients, first_two); };
  CHECK(chosen({{Kind::moved, 7}, {Kind::moved, 7}}) == 0);
  CHECK(chosen({{Kind::moved, 7}, {Kind::moved, 6}}) == 1);
  CHECK(chosen({{Kind::moved, 6}, {Kind::moved, 7}}) == 0);
  CHECK(chosen({{Kind::moved, 6}, {Kind::moved, 7}, {Kind::holds, 7}}) == 1);
  CHECK(chosen({{Kind::moved, 6}, {Kind::alone, 9}}) == 1);
  CHECK(chosen({{Kind::moved, 6}, {Kind::moved, 7, 8, true}}) == 1);
}

TEST_CASE("what a client published that comes back later is lacking unless a copy that is there contains it") {
  const std::array copy{Gap{.newest = 2, .begun = 3}, Gap{.newest = 7, .begun = 20}};
  CHECK(lacks(copy, {Kind::moved, 5}));
  CHECK(lacks(copy, {Kind::moved, 5, 8}));  // a copy that was never handed out, or to nobody that was there
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 7}));
  CHECK(lacks(copy, {Kind::moved, 1, 3}));         // of a daemon before the last one
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 21}));  // broke off from this daemon
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 8, true}));
  CHECK_FALSE(lacks(copy, {Kind::holds, 5}));
  CHECK_FALSE(lacks(copy, {Kind::alone, 5}));
  CHECK_FALSE(lacks(copy, {}));
}
