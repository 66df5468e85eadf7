// Tests when which address is dialled, under a clock of the test's own.

#include "peer/overlay/address_book.hpp"

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::peer;

namespace {

Address at(std::uint16_t port) {
  return {"10.0.0.1", port};
}
NodeId id(std::uint8_t first) {
  return NodeId{{first}};
}
NodeId numbered(std::size_t number) {
  return NodeId{{2, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)}};
}
bool nobody(const NodeId&) {
  return false;
}
bool everybody(const NodeId&) {
  return true;
}

}  // namespace

TEST_CASE("a configured address is dialled at once, then later and later, with jitter, for ever") {
  AddressBook book({}, id(9));
  gossip::Random random(1);
  book.set_configured({at(1)}, 1000);
  CHECK_FALSE(book.all_dialled(nobody));
  REQUIRE(book.take_due(1000, 10, nobody).size() == 1);
  CHECK(book.take_due(1000, 10, nobody).empty());  // it is being dialled
  TimeUs now = 1000;
  // back-off / ms: 100 200 400 800 1600 3200 5000 5000, each halved at most by jitter
  for (const TimeUs wait : {100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000}) {
    CHECK(book.failed(at(1), "no answer", now, random) == (wait == 100));  // reported only once
    CHECK(book.all_dialled(nobody));
    const TimeUs next = book.entries().at(at(1).text()).next_attempt;
    CHECK(next >= now + wait * us_per_ms / 2);
    CHECK(next <= now + wait * us_per_ms);
    CHECK(book.take_due(next - 1, 10, nobody).empty());
    now = next;
    REQUIRE(book.take_due(now, 10, nobody).size() == 1);
  }
  CHECK(book.failed(at(1), "another reason", now, random));
  // A link resets the back-off.
  book.identified(at(1), id(1));
  book.link_up(id(1), now);
  CHECK(book.take_due(now + us_per_s * 100, 10, everybody).empty());
  book.link_down(id(1), now, random);
  CHECK(book.take_due(now + 100 * us_per_ms, 10, nobody).size() == 1);
}

TEST_CASE("the back-off doubles from link to link while they are short, and begins anew after one that lasts") {
  AddressBook book({}, id(9));
  gossip::Random random(1);
  book.set_configured({at(1)}, 0);
  TimeUs now = 0;
  const auto wait_after_link_of = [&](TimeUs lasting) {
    REQUIRE(book.take_due(now, 10, nobody).size() == 1);
    book.identified(at(1), id(1));
    book.link_up(id(1), now);
    now += lasting;
    book.link_down(id(1), now, random);
    const TimeUs waits = book.entries().at(at(1).text()).next_attempt - now;
    now += waits;
    return waits;
  };
  // back-off / ms, each halved at most by jitter
  for (const TimeUs most : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    const TimeUs waits = wait_after_link_of(50 * us_per_ms);
    CHECK(waits >= most * us_per_ms / 2);
    CHECK(waits <= most * us_per_ms);
  }
  CHECK(wait_after_link_of(5 * us_per_s) <= 100 * us_per_ms);
  // Attempts that failed before the first link do not count.
  (void)book.take_due(now, 10, nobody);
  for (int i = 0; i < 9; ++i)
    (void)book.failed(at(1), "no answer", now, random);
  now = book.entries().at(at(1).text()).next_attempt;
  CHECK(wait_after_link_of(5 * us_per_s) <= 100 * us_per_ms);
}

TEST_CASE("where this machine has moved nothing waits any longer, and waits begin anew") {
  AddressBook book({}, id(9));
  gossip::Random random(1);
  book.set_configured({at(1)}, 0);
  TimeUs now = 0;
  for (int i = 0; i < 6; ++i) {
    now += 10 * us_per_s;
    REQUIRE(book.take_due(now, 10, nobody).size() == 1);
    (void)book.failed(at(1), "no answer", now, random);
  }
  CHECK(book.take_due(now, 10, nobody).empty());
  book.hurry(now);
  CHECK(book.take_due(now, 10, nobody).size() == 1);
  (void)book.failed(at(1), "no answer", now, random);
  CHECK(book.take_due(now + 100 * us_per_ms, 10, nobody).size() == 1);
}

TEST_CASE("of two nodes that learn of each other the smaller dials first") {
  AddressBook small({}, id(1));
  AddressBook large({}, id(2));
  CHECK(small.learn(id(2), at(2), 0));
  CHECK(large.learn(id(1), at(1), 0));
  CHECK(small.take_due(0, 10, nobody).size() == 1);
  CHECK(large.take_due(0, 10, nobody).empty());
  CHECK(large.learn(id(0), at(3), 0, true));  // not expecting it
  CHECK(large.take_due(0, 10, nobody) == std::vector<Address>{at(3)});
  CHECK(large.take_due(us_per_s, 10, everybody).empty());
  CHECK(large.take_due(us_per_s, 10, nobody).size() == 1);
}

TEST_CASE("learned addresses are forgotten when they have failed for long, or their node has left") {
  AddressBook book({}, id(1));
  gossip::Random random(1);
  CHECK(book.learn(id(2), at(2), 0));
  CHECK(book.learn(id(3), at(3), 0));
  book.set_configured({at(4)}, 0);
  book.forget(id(3));
  CHECK(book.entries().size() == 2);
  REQUIRE(book.take_due(0, 10, nobody).size() == 2);
  book.failed(at(2), "x", 0, random);
  book.failed(at(4), "x", 0, random);
  CHECK(book.take_due(601 * us_per_s, 10, nobody) == std::vector<Address>{at(4)});
  CHECK(book.entries().size() == 1);
}

TEST_CASE("its own address and linked nodes are not dialled, and count as dialled") {
  AddressBook book({}, id(1));
  gossip::Random random(1);
  book.set_configured({at(1), at(2)}, 0);
  REQUIRE(book.take_due(0, 10, nobody).size() == 2);
  book.identified(at(1), id(1));
  book.released(at(1), 0, random);
  book.identified(at(2), id(2));
  CHECK_FALSE(book.all_dialled(nobody));
  CHECK(book.all_dialled(everybody));
  CHECK(book.take_due(us_per_s * 100, 10, everybody).empty());
}

TEST_CASE("the book and one turn's dialling are bounded") {
  AddressBook book({}, id(1));
  for (std::size_t i = 0; i < max_members; ++i)
    CHECK(book.learn(numbered(i), at(static_cast<std::uint16_t>(i + 1)), 0));
  CHECK_FALSE(book.learn(numbered(max_members), at(60000), 0));
  CHECK(book.learn(numbered(0), at(1), 0));
  CHECK(book.entries().size() == max_members);
  CHECK(book.take_due(0, 3, nobody).size() == 3);
}

TEST_CASE("hearsay does not change who answers at a configured address") {
  AddressBook book({}, id(1));
  book.set_configured({at(2)}, 0);
  CHECK(book.learn(id(7), at(2), 0));
  CHECK_FALSE(book.entries().at(at(2).text()).node);
}

TEST_CASE("a remembered address is dialled like a learned one, by whoever is there") {
  AddressBook book({}, id(1));
  gossip::Random random(1);
  book.remember(at(2), 0);
  CHECK(book.all_dialled(nobody));
  CHECK_FALSE(book.all_dialled(nobody, true));
  REQUIRE(book.take_due(0, 10, nobody).size() == 1);
  book.identified(at(2), id(2));
  CHECK(book.all_dialled(everybody, true));
  book.failed(at(2), "no answer", 0, random);
  CHECK(book.all_dialled(nobody, true));
  CHECK(book.take_due(601 * us_per_s, 10, nobody).empty());
  CHECK(book.entries().empty());
}

TEST_CASE("a node that has moved is dialled where it is now, and only what is wanted is dialled") {
  AddressBook book({}, id(1));
  gossip::Random random(1);
  CHECK(book.learn(id(2), at(2), 0));
  CHECK(book.learn(id(3), at(3), 0));
  CHECK(book.learn(id(2), at(20), 0));
  CHECK(book.entries().size() == 2);
  CHECK(book.node_at(at(20).text()) == id(2));
  CHECK_FALSE(book.node_at(at(2).text()));
  const auto is_two = [](const BookEntry& entry) { return entry.node == id(2); };
  CHECK(book.take_due(0, 10, nobody, is_two) == std::vector<Address>{at(20)});
  CHECK_FALSE(book.has_failed(id(2)));
  book.failed(at(20), "no answer", 0, random);
  CHECK(book.has_failed(id(2)));
  // An address that is being dialled stays until the dial is over. A configured one stays for good.
  REQUIRE(book.take_due(us_per_s, 10, nobody, is_two).size() == 1);
  CHECK(book.learn(id(2), at(21), us_per_s));
  CHECK(book.entries().size() == 3);
  book.set_configured({at(4)}, 0);
  book.identified(at(4), id(4));
  CHECK(book.learn(id(4), at(40), 0));
  CHECK(book.node_at(at(4).text()) == id(4));
}
