// Tests denials: the later decision holds in whatever order the decisions are heard, nobody can make a decision final,
// and the table is bounded and restored from a file.

#include "peer/admission/denials.hpp"

#include <algorithm>
#include <limits>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "node_id.hpp"
#include "peer/limits.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

using gossamer::test::node_id;

constexpr TimeUs today = 1'800'000'000 * us_per_s;

Denial denial(std::uint64_t number, bool denied, TimeUs at, std::string reason = "") {
  return {node_id(number), denied, at, std::move(reason)};
}

}  // namespace

TEST_CASE("of two decisions about a node the later one holds") {
  Denials denials;
  CHECK_FALSE(denials.is_denied(node_id(1)));
  CHECK(denials.merge(denial(1, true, today), today) == Hearsay::news);
  CHECK(denials.is_denied(node_id(1)));
  CHECK(denials.merge(denial(1, true, today), today) == Hearsay::known);
  CHECK(denials.merge(denial(1, false, today - 1), today) == Hearsay::known);
  CHECK(denials.is_denied(node_id(1)));
  CHECK(denials.merge(denial(1, false, today + 1), today) == Hearsay::news);
  CHECK_FALSE(denials.is_denied(node_id(1)));
}

TEST_CASE("members that hear the same decisions in another order come to hold the same") {
  gossip::Random random(5);
  std::vector<Denial> heard;
  for (int i = 0; i < 60; ++i) {
    // Few nodes and few times, so that many are equal.
    heard.push_back(denial(random.below(4), random.below(2) == 0, today + static_cast<TimeUs>(random.below(3)),
                           std::string(1, static_cast<char>('a' + random.below(3)))));
  }
  std::string first;
  for (int order = 0; order < 20; ++order) {
    Denials denials;
    for (const Denial& record : heard)
      (void)denials.merge(record, today);
    if (order == 0) first = denials.text();
    CHECK(denials.text() == first);
    for (std::size_t i = 0; i + 1 < heard.size(); ++i)
      std::swap(heard[i], heard[i + random.below(heard.size() - i)]);
  }
  CHECK(std::ranges::count(first, '\n') == 4);
}

TEST_CASE("a decision dated too far ahead is refused, and our own always counts") {
  Denials denials;
  CHECK(denials.merge(denial(1, true, today + max_ahead_us + 1), today) == std::unexpected(Refusal::ahead));
  CHECK(denials.merge(denial(1, true, std::numeric_limits<TimeUs>::max()), today) == std::unexpected(Refusal::ahead));
  CHECK(denials.entries().empty());
  CHECK(denials.merge(denial(1, true, today + max_ahead_us), today) == Hearsay::news);
  const Denial ours = denials.propose(node_id(1), false, "ours", today);
  CHECK(denials.decide(ours));
  CHECK(ours.decided_at == today + max_ahead_us + 1);
  CHECK_FALSE(denials.is_denied(node_id(1)));
  CHECK(denials.propose(node_id(2), true, "", today).decided_at == today);
}

TEST_CASE("a decision that is dated at the end of time is read, and nothing later is made of it") {
  constexpr TimeUs last = std::numeric_limits<TimeUs>::max();
  auto denials = Denials::parse("denied " + node_id(1).full() + " " + std::to_string(last) + " nonsense\n");
  REQUIRE(denials);
  const Denial ours = denials->propose(node_id(1), false, "ours", today);
  CHECK(ours.decided_at == last);
  CHECK_FALSE(denials->decide(ours));
}

TEST_CASE("the table of denials is bounded, and what is denied stays denied") {
  Denials denials;
  for (std::uint64_t i = 0; i < max_denials; ++i)
    CHECK(denials.merge(denial(i, i % 2 == 0, today + static_cast<TimeUs>(i)), today) == Hearsay::news);
  CHECK(denials.merge(denial(5000, false, today), today) == std::unexpected(Refusal::no_room));
  for (std::uint64_t i = 0; i < max_denials / 2; ++i)
    CHECK(denials.merge(denial(6000 + i, true, today), today) == Hearsay::news);
  CHECK(denials.entries().size() == max_denials);
  CHECK(denials.merge(denial(7000, true, today), today) == std::unexpected(Refusal::no_room));
  for (std::uint64_t i = 0; i < max_denials; i += 2)
    CHECK(denials.is_denied(node_id(i)));
}

TEST_CASE("whoever fills the table with denials stops neither our operator's nor those of nodes that are here") {
  Denials denials;
  CHECK(denials.merge(denial(1, true, today), today) == Hearsay::news);  // an honest one
  for (std::uint64_t i = 2; i <= max_denials; ++i)
    CHECK(denials.merge(denial(i, true, today + max_ahead_us - 1), today) == Hearsay::news);
  CHECK(denials.decide(denial(7000, true, today)));
  CHECK(denials.merge(denial(7001, true, today), today, true) == Hearsay::news);
  CHECK(denials.merge(denial(7002, true, today), today) == std::unexpected(Refusal::no_room));
  CHECK(denials.merge(denial(7003, false, today), today, true) == std::unexpected(Refusal::no_room));
  for (const std::uint64_t node : {1, 7000, 7001})
    CHECK(denials.is_denied(node_id(node)));
  CHECK(denials.entries().size() == max_denials);
}

TEST_CASE("what is new since a change is told in its order, in parts") {
  Denials denials;
  for (std::uint64_t i = 0; i < 10; ++i)
    (void)denials.merge(denial(9 - i, true, today), today);
  std::uint64_t change = 0;
  const auto first = denials.since(change, 4);
  REQUIRE(first.size() == 4);
  CHECK(first[0].node == node_id(9));
  CHECK(denials.since(change, 100).size() == 6);
  CHECK(change == denials.last_change());
  CHECK(denials.since(change, 100).empty());
  (void)denials.merge(denial(3, false, today + 1), today);
  CHECK(denials.since(change, 100) == std::vector{denial(3, false, today + 1)});
}

TEST_CASE("denials survive being written down") {
  Denials denials;
  (void)denials.merge(denial(1, true, today, "stolen from the café"), today);
  (void)denials.merge(denial(2, false, today - 5), today);
  const auto read = Denials::parse(denials.text());
  REQUIRE(read);
  CHECK(read->text() == denials.text());
  CHECK(read->is_denied(node_id(1)));
  CHECK(read->entries().at(node_id(1)).denial.reason == "stolen from the café");
  REQUIRE(Denials::parse(""));
}

TEST_CASE("a garbled file of denials is refused by line") {
  const std::string id = node_id(1).full();
  const std::string good = "denied " + id + " 5 why\n";
  REQUIRE(Denials::parse(good));
  for (const std::string& bad :
       {std::string("what\n"), "Denied " + id + " 5\n", "denied " + id + "\n", "denied " + id + " \n",
        "denied " + id + " x\n", "denied " + id + " 5x\n", "denied " + id.substr(1) + " 5\n", "denied " + id + "0 5\n",
        "denied " + id + " 5 a\tb\n", std::string("\n"), "denied " + id + " 99999999999999999999\n"}) {
    CAPTURE(bad);
    const auto read = Denials::parse(good + bad);
    REQUIRE_FALSE(read);
    CHECK(read.error().find("line 2") == 0);
  }
  gossip::Random random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    text[random.below(text.size())] = static_cast<char>(random.next());
    const auto read = Denials::parse(text);
    if (read) CHECK(read->entries().size() <= 2);
  }
}

TEST_CASE("where the cluster has an authority, only what it has signed is taken from others") {
  const SigningKey authority = SigningKey::generate();
  const auto signed_by = [](const SigningKey& key, Denial record) {
    record.signature = key.sign(record.statement());
    return record;
  };
  const auto hear = [&](Denials& denials, const Denial& record) {
    return denials.merge(record, today, true, authority.public_half());
  };
  Denials denials;
  CHECK(hear(denials, denial(1, true, today)) == std::unexpected(Refusal::not_signed));
  CHECK(hear(denials, signed_by(SigningKey::generate(), denial(1, true, today))) ==
        std::unexpected(Refusal::not_signed));
  Denial moved = signed_by(authority, denial(1, true, today));
  moved.node = node_id(2);
  CHECK(hear(denials, moved) == std::unexpected(Refusal::not_signed));
  CHECK(denials.entries().empty());
  CHECK(hear(denials, signed_by(authority, denial(1, true, today))) == Hearsay::news);
  CHECK(hear(denials, denial(1, true, today)) == Hearsay::known);
  CHECK(hear(denials, denial(1, false, today + 1)) == std::unexpected(Refusal::not_signed));
  CHECK(denials.is_denied(node_id(1)));
  CHECK(hear(denials, signed_by(authority, denial(1, false, today + 1))) == Hearsay::news);
  CHECK_FALSE(denials.is_denied(node_id(1)));
}

TEST_CASE(
    "a signature is kept with its record, also where no authority is known yet, and one of another is forgotten") {
  const SigningKey authority = SigningKey::generate();
  Denials denials;
  Denial sound = denial(1, true, today, "sold");
  sound.signature = authority.sign(sound.statement());
  Denial forged = denial(2, true, today, "forged");
  forged.signature = SigningKey::generate().sign(forged.statement());
  CHECK(denials.merge(denial(1, true, today, "sold"), today) == Hearsay::news);
  CHECK(denials.merge(sound, today) == Hearsay::news);  // the same, and signed
  CHECK(denials.merge(forged, today) == Hearsay::news);
  auto again = Denials::parse(denials.text());
  REQUIRE(again);
  CHECK(again->text() == denials.text());
  again->settle(authority.public_half(), true);
  CHECK(again->entries().at(node_id(1)).denial == sound);
  CHECK(again->entries().at(node_id(2)).denial == denial(2, true, today, "forged"));
  for (const char* bad : {"signed", "signed 00", "signed  denied"})
    CHECK_FALSE(Denials::parse(bad));
}

TEST_CASE("what the authority has signed replaces what nobody has, whatever the dates, also when the table is full") {
  const SigningKey authority = SigningKey::generate();
  const auto sign = [&](Denial record) {
    record.signature = authority.sign(record.statement());
    return record;
  };
  const auto hear = [&](Denials& denials, const Denial& record) {
    return denials.merge(record, today, false, authority.public_half());
  };
  Denials denials;
  for (std::uint64_t i = 1; i <= max_denials; ++i)
    // The authority is not heard of yet.
    CHECK(denials.merge(denial(i, true, today + max_ahead_us), today) == Hearsay::news);
  CHECK(hear(denials, sign(denial(1, false, today - 5))) == Hearsay::news);
  CHECK_FALSE(denials.is_denied(node_id(1)));
  CHECK(hear(denials, sign(denial(5000, true, today))) == Hearsay::news);
  CHECK(denials.is_denied(node_id(5000)));
  CHECK(denials.entries().size() == max_denials);
  // The operator's own decision, too, keeps its date, however late the unsigned ones are dated.
  const Denial ours = denials.propose(node_id(7), false, "", today, true);
  CHECK(ours.decided_at == today);
  CHECK(denials.decide(sign(ours), authority.public_half()));
  CHECK_FALSE(denials.is_denied(node_id(7)));
}
