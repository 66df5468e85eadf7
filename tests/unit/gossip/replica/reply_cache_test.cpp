// Exactly once: what a responder remembers, how it treats a repeated request, and that its memory is bounded.

#include "gossip/replica/reply_cache.hpp"
#include "catch.hpp"
#include "gossip/random.hpp"
#include "node_id.hpp"

using namespace gossamer;
using namespace gossamer::gossip;
using Standing = ReplyCache::Standing;

namespace {

using gossamer::test::node_id;

constexpr TimeUs lifetime_us = 1'000;

const NodeId alice = node_id(1);
const NodeId bob = node_id(2);

ExchangeReply reply_to(std::uint64_t counter) {
  return {.counter = counter, .status = ReplyStatus::done, .shift = 3};
}
/// The half that would have to be undone.
AnsweredHalf half() {
  return {.exponents = {1}};
}
void answer(ReplyCache& cache, const ExchangeId& id, TimeUs now_us) {
  cache.begin(id, now_us);
  cache.store(id, reply_to(id.counter), half(), 0);
}

}  // namespace

TEST_CASE("an exchange goes from fresh through working and answered to acknowledged", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  const ExchangeId id{alice, 7};
  CHECK(cache.standing(id) == Standing::fresh);
  cache.begin(id, 0);
  CHECK(cache.standing(id) == Standing::working);
  CHECK(cache.unacknowledged() == 1);
  CHECK_FALSE(cache.acknowledge(id));  // it has not been answered yet
  CHECK(cache.standing(id) == Standing::working);
  cache.store(id, reply_to(7), half(), 0);
  CHECK(cache.standing(id) == Standing::answered);
  CHECK(cache.reply(id).counter == 7);
  CHECK(cache.reply(id).shift == 3);
  CHECK(cache.acknowledge(id));
  CHECK(cache.standing(id) == Standing::acknowledged);
  CHECK_FALSE(cache.acknowledge(id));
  CHECK(cache.unacknowledged() == 0);
  CHECK(cache.standing({bob, 7}) == Standing::fresh);
  CHECK(cache.standing({alice, 6}) == Standing::fresh);
}

TEST_CASE("what was declined stays declined", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  cache.decline({alice, 1}, 0);
  CHECK(cache.standing({alice, 1}) == Standing::declined);
  cache.begin({alice, 2}, 0);  // begun, and then found not finite, say
  cache.decline({alice, 2}, 1);
  CHECK(cache.standing({alice, 2}) == Standing::declined);
  CHECK(cache.unacknowledged() == 0);
  CHECK_FALSE(cache.acknowledge({alice, 1}));
  CHECK(cache.standing({alice, 1}) == Standing::declined);
  answer(cache, {alice, 3}, 0);
  cache.decline({alice, 3}, 1);  // too late: it is committed
  CHECK(cache.standing({alice, 3}) == Standing::answered);
  CHECK(cache.unacknowledged() == 1);
}

TEST_CASE("an initiator that acknowledges nothing is served up to a bound", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  for (std::uint64_t counter = 1; counter <= ReplyCache::max_unacknowledged; ++counter) {
    REQUIRE(cache.standing({alice, counter}) == Standing::fresh);
    answer(cache, {alice, counter}, 0);
  }
  CHECK(cache.standing({alice, 99}) == Standing::full);
  CHECK(cache.standing({alice, 1}) == Standing::answered);
  CHECK(cache.standing({bob, 99}) == Standing::fresh);
  CHECK(cache.acknowledge({alice, 5}));
  CHECK(cache.standing({alice, 99}) == Standing::fresh);
}

TEST_CASE("counters are remembered up to a bound, the oldest forgotten as too old", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  answer(cache, {alice, 1}, 0);  // never acknowledged, so it is kept whatever comes later
  for (std::uint64_t counter = 2; counter <= 3 * ReplyCache::max_remembered; ++counter) {
    if (counter % 2 == 0) {
      cache.decline({alice, counter}, 0);
    } else {
      answer(cache, {alice, counter}, 0);
      REQUIRE(cache.acknowledge({alice, counter}));
    }
  }
  CHECK(cache.standing({alice, 1}) == Standing::answered);
  CHECK(cache.standing({alice, 2}) == Standing::expired);
  CHECK(cache.standing({alice, 2 * ReplyCache::max_remembered}) == Standing::expired);
  CHECK(cache.standing({alice, 3 * ReplyCache::max_remembered}) == Standing::declined);
  CHECK(cache.standing({alice, 3 * ReplyCache::max_remembered - 1}) == Standing::acknowledged);
  CHECK(cache.standing({alice, 3 * ReplyCache::max_remembered + 1}) == Standing::fresh);
  std::size_t remembered = 0;
  for (std::uint64_t counter = 1; counter <= 3 * ReplyCache::max_remembered; ++counter) {
    if (cache.standing({alice, counter}) != Standing::expired) ++remembered;
  }
  CHECK(remembered == ReplyCache::max_remembered);
}

TEST_CASE("a reply whose acknowledgement is overdue is asked for, and what is under its counter is too old",
          "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  answer(cache, {alice, 10}, 0);
  answer(cache, {alice, 11}, 0);
  cache.acknowledge({alice, 11});
  cache.decline({alice, 12}, 0);
  cache.begin({alice, 13}, 0);      // a task that takes its time
  answer(cache, {alice, 20}, 500);  // younger
  CHECK(cache.expire(lifetime_us - 1).empty());
  CHECK(cache.orphans() == 0);
  CHECK(cache.expire(lifetime_us).empty());
  CHECK(cache.orphans() == 1);
  const auto inquiries = cache.inquiries();
  REQUIRE(inquiries.size() == 1);
  CHECK(inquiries[0].first == alice);
  CHECK(inquiries[0].second.counter == 10);
  CHECK(cache.standing({alice, 10}) == Standing::answered);
  for (const std::uint64_t counter : {1, 11, 12})
    CHECK(cache.standing({alice, counter}) == Standing::expired);
  CHECK(cache.standing({alice, 13}) == Standing::working);
  CHECK(cache.standing({alice, 14}) == Standing::fresh);
  CHECK(cache.standing({alice, 20}) == Standing::answered);
  CHECK(cache.unacknowledged() == 2);
  CHECK(cache.store({alice, 13}, reply_to(13), half(), 0));
  CHECK(cache.standing({alice, 13}) == Standing::answered);
  CHECK(cache.expire(2 * lifetime_us).empty());
  CHECK(cache.orphans() == 3);
  CHECK(cache.unacknowledged() == 0);
  cache.mark_unsent(alice);  // the initiator is asked, and the reply is not sent again
  CHECK(cache.take_unsent().empty());
  CHECK(cache.mark_overdue(alice, 3 * lifetime_us, 1) == 0);
  CHECK(cache.acknowledge({alice, 10}));
  CHECK(cache.orphans() == 2);
  CHECK(cache.standing({alice, 10}) == Standing::acknowledged);
}

TEST_CASE("a half that was never taken is given back once, to be undone", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  CHECK_FALSE(cache.take_back({alice, 1}));
  const std::uint32_t place = cache.begin({alice, 1}, 0);
  CHECK_FALSE(cache.take_back({alice, 1}));  // a worker still computes it
  cache.store({alice, 1}, reply_to(1), half(), 0);
  const auto undo = cache.take_back({alice, 1});
  REQUIRE(undo);
  CHECK(undo->place == place);
  CHECK(undo->reply.counter == 1);
  CHECK(undo->half.exponents == half().exponents);
  CHECK(cache.take_left().empty());  // the record is needed until the half is undone
  CHECK_FALSE(cache.take_back({alice, 1}));
  CHECK_FALSE(cache.acknowledge({alice, 1}));
  CHECK(cache.unacknowledged() == 0);
  cache.leave_place(place);
  CHECK(cache.take_left() == std::vector<std::uint32_t>{place});

  cache.begin({alice, 2}, 0);
  cache.store({alice, 2}, reply_to(2), {}, 0);  // the two replicas agreed: nothing to undo
  CHECK_FALSE(cache.take_back({alice, 2}));
  CHECK(cache.standing({alice, 2}) == Standing::acknowledged);
  CHECK(cache.take_left().size() == 1);
}

TEST_CASE("replies have places, and with none left no request is taken", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  cache.set_capacity(2);
  const std::uint32_t first = cache.begin({alice, 1}, 0);
  CHECK(cache.standing({alice, 2}) == Standing::full);  // one initiator gets at most half of the places
  const std::uint32_t second = cache.begin({bob, 1}, 0);
  CHECK(first != second);
  CHECK(cache.standing({alice, 2}) == Standing::full);
  CHECK(cache.standing({node_id(9), 1}) == Standing::full);
  cache.store({alice, 1}, reply_to(1), half(), 0);
  CHECK(cache.acknowledge({alice, 1}));
  CHECK(cache.take_left() == std::vector<std::uint32_t>{first});
  CHECK(cache.standing({alice, 2}) == Standing::fresh);
  CHECK(cache.begin({alice, 2}, 0) == first);
}

TEST_CASE("replies of a former daemon are orphans from the beginning", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  cache.set_capacity(4);
  cache.restore({alice, 7}, 2, reply_to(7), half(), 0);
  cache.restore({bob, 7}, 2, reply_to(7), half(), 0);  // a place that is taken
  cache.restore({bob, 7}, 9, reply_to(7), half(), 0);  // there is no such place
  CHECK(cache.orphans() == 1);
  CHECK(cache.unacknowledged() == 0);
  REQUIRE(cache.inquiries().size() == 1);
  const auto undo = cache.take_back({alice, 7});
  REQUIRE(undo);
  CHECK(undo->place == 2);
  CHECK(cache.orphans() == 0);
}

TEST_CASE("orphans are bounded in number and in age, the oldest are given up", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  for (std::uint64_t counter = 1; counter <= ReplyCache::max_orphans + 3; ++counter)
    answer(cache, {alice, counter}, static_cast<TimeUs>(counter));
  const TimeUs then = lifetime_us + ReplyCache::max_orphans + 3;
  CHECK(cache.expire(then).size() == 3);
  CHECK(cache.orphans() == ReplyCache::max_orphans);
  CHECK(cache.standing({alice, 1}) != Standing::answered);
  CHECK(cache.standing({alice, 4}) == Standing::answered);
  CHECK(cache.take_left().size() == 3);
  CHECK(cache.expire(ReplyCache::orphan_life_us).empty());
  CHECK(cache.expire(2 * ReplyCache::orphan_life_us).size() == ReplyCache::max_orphans);
  CHECK(cache.orphans() == 0);
  CHECK(cache.take_left().size() == ReplyCache::max_orphans);
}

TEST_CASE("those who are gone do not keep others from being answered", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  cache.set_capacity(8);
  for (std::uint8_t dead = 10; dead < 14; ++dead) {
    answer(cache, {node_id(dead), 1}, dead);
    answer(cache, {node_id(dead), 2}, dead);
    cache.orphan(node_id(dead), 100);
  }
  CHECK(cache.standing({alice, 1}) == Standing::full);
  const auto lost = cache.expire(lifetime_us + 20);
  CHECK(lost.size() == 4);  // the oldest four
  CHECK(cache.orphans() == 4);
  CHECK(cache.standing({alice, 1}) == Standing::fresh);
}

TEST_CASE("of a replica that is gone only its own exchanges are dropped", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  for (std::uint64_t counter = 1; counter <= 3; ++counter)
    answer(cache, {alice, counter}, 0);
  cache.begin({alice, 4}, 0);
  answer(cache, {alice, 5}, 0);
  cache.begin({alice, 6}, 0);
  cache.acknowledge({alice, 2});
  CHECK(cache.drop(alice, 5) == std::vector<ExchangeId>{{alice, 1}, {alice, 3}});
  CHECK(cache.drop(alice, 5).empty());
  CHECK(cache.drop(node_id(9), 5).empty());
  CHECK(cache.unacknowledged() == 2);
  CHECK_FALSE(cache.store({alice, 4}, {.counter = 4}, half(), 0));
  CHECK(cache.standing({alice, 4}) == Standing::expired);
  CHECK(cache.standing({alice, 5}) == Standing::answered);
  CHECK(cache.store({alice, 6}, {.counter = 6}, half(), 0));
}

TEST_CASE("a dead initiator's replies are kept until its successor has been asked", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  for (std::uint64_t counter = 1; counter <= 3; ++counter)
    answer(cache, {alice, counter}, 0);
  cache.acknowledge({alice, 2});
  cache.begin({alice, 4}, 0);
  cache.decline({alice, 5}, 0);
  answer(cache, {bob, 1}, 0);
  cache.orphan(alice, 3);  // only exchanges of its earlier life
  CHECK(cache.orphans() == 1);
  cache.orphan(alice, 100);
  cache.orphan(alice, 100);
  cache.orphan(node_id(9), 100);
  CHECK(cache.orphans() == 2);
  CHECK(cache.unacknowledged() == 1);
  CHECK(cache.inquiries().size() == 2);
  CHECK(cache.store({alice, 4}, reply_to(4), half(), 0));  // the task that was under way ends after all
  CHECK(cache.orphans() == 3);
  // The initiator comes back and repeats its requests. No earlier exchange is answered twice.
  for (std::uint64_t counter = 1; counter <= 5; ++counter)
    CHECK(cache.standing({alice, counter}) != Standing::fresh);
  CHECK(cache.standing({alice, 6}) == Standing::fresh);
  CHECK(cache.unacknowledged() == 1);
}

TEST_CASE("replies that may not have arrived are given again", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  CHECK(cache.take_unsent().empty());
  answer(cache, {alice, 1}, 0);
  answer(cache, {alice, 2}, 0);
  cache.begin({alice, 3}, 0);
  answer(cache, {bob, 1}, 0);
  cache.mark_unsent(alice, reply_to(2));
  auto unsent = cache.take_unsent();
  REQUIRE(unsent.size() == 1);
  CHECK(unsent[0].first == alice);
  CHECK(unsent[0].second.counter == 2);
  CHECK(cache.take_unsent().empty());
  cache.mark_unsent(alice);  // a link broke and is back
  CHECK(cache.take_unsent().size() == 2);
  cache.mark_unsent(alice);
  cache.acknowledge({alice, 1});  // it had arrived after all
  unsent = cache.take_unsent();
  REQUIRE(unsent.size() == 1);
  CHECK(unsent[0].second.counter == 2);
  cache.mark_unsent(node_id(9));
  cache.mark_unsent(alice, reply_to(77));
  CHECK(cache.take_unsent().empty());
}

TEST_CASE("a declining reply that could not be sent is given again", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  cache.decline({alice, 4}, 0);
  cache.mark_unsent(alice, {.counter = 4, .status = ReplyStatus::busy});
  const auto unsent = cache.take_unsent();
  REQUIRE(unsent.size() == 1);
  CHECK(unsent[0].second.status == ReplyStatus::busy);
  CHECK(cache.take_unsent().empty());
}

TEST_CASE("no order of events answers an exchange twice", "[reply_cache]") {
  Random random(3);
  for (int round = 0; round < 50; ++round) {
    ReplyCache cache(lifetime_us);
    std::map<ExchangeId, int> begun;
    std::vector<ExchangeId> working;
    TimeUs now_us = 0;
    for (int event = 0; event < 2'000; ++event) {
      now_us += static_cast<TimeUs>(random.below(20));
      const ExchangeId id{random.below(2) == 0 ? alice : bob,
                          1 + static_cast<std::uint64_t>(event) / 8 + random.below(40)};
      switch (random.below(6)) {
        case 0:
        case 1:
        case 2:
          if (cache.standing(id) != Standing::fresh) break;
          REQUIRE(++begun[id] == 1);
          if (random.below(4) == 0) {
            cache.decline(id, now_us);
          } else {
            cache.begin(id, now_us);
            working.push_back(id);
          }
          break;
        case 3:
          if (working.empty()) break;
          cache.store(working.back(), reply_to(working.back().counter), half(), 0);
          working.pop_back();
          break;
        case 4:
          cache.acknowledge(id);
          break;
        case 5:
          if (random.below(20) == 0) cache.drop(id.initiator, id.counter);
          if (random.below(20) == 0) cache.orphan(id.initiator, id.counter);
          if (random.below(20) == 0) cache.take_back(id);
          cache.expire(now_us);
          break;
      }
      REQUIRE(cache.unacknowledged() <= 2 * ReplyCache::max_unacknowledged);
    }
  }
}

TEST_CASE("initiators long gone make room for new ones", "[reply_cache]") {
  ReplyCache cache(1000);
  const auto initiator = [](std::size_t number) {
    NodeId id;
    id.bytes[0] = static_cast<std::uint8_t>(number >> 8);
    id.bytes[1] = static_cast<std::uint8_t>(number);
    return id;
  };
  for (std::size_t i = 0; i < ReplyCache::max_initiators; ++i) {
    cache.begin({initiator(i), 100 + i}, 0);
    cache.store({initiator(i), 100 + i}, ExchangeReply{.counter = 100 + i}, half(), 0);
    cache.drop(initiator(i), 1'000'000);
  }
  CHECK(cache.standing({initiator(0), 100}) == ReplyCache::Standing::expired);
  cache.begin({initiator(ReplyCache::max_initiators), 9000}, 1);
  CHECK(cache.standing({initiator(0), 100}) == ReplyCache::Standing::fresh);
  CHECK(cache.standing({initiator(1), 101}) == ReplyCache::Standing::expired);
}

TEST_CASE("what one replica has seen, the next of its node does not take again", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  answer(cache, {alice, 7}, 0);
  cache.decline({alice, 9}, 0);
  answer(cache, {bob, 4}, 0);
  CHECK(cache.expire(lifetime_us).empty());
  answer(cache, {bob, 5}, lifetime_us);
  ReplyCache::Seen seen{{alice, 3}, {bob, 6}};
  cache.add_seen(seen);
  CHECK(seen == ReplyCache::Seen{{alice, 9}, {bob, 6}});

  ReplyCache next(lifetime_us);
  next.begin_after(seen);
  CHECK(next.standing({alice, 7}) == Standing::expired);
  CHECK(next.standing({alice, 9}) == Standing::expired);
  CHECK(next.standing({alice, 10}) == Standing::fresh);
  CHECK(next.standing({bob, 6}) == Standing::expired);
  CHECK(next.standing({bob, 7}) == Standing::fresh);
}

TEST_CASE("what was turned down for want of a replica is turned down by the next one", "[reply_cache]") {
  ReplyCache::Seen seen{{alice, 3}};
  ReplyCache::add_seen({alice, 5}, seen);
  ReplyCache::add_seen({alice, 4}, seen);
  ReplyCache::add_seen({bob, 1}, seen);
  CHECK(seen == ReplyCache::Seen{{alice, 5}, {bob, 1}});
  ReplyCache next(lifetime_us);
  next.begin_after(seen);
  CHECK(next.standing({alice, 5}) == Standing::expired);
  CHECK(next.standing({alice, 6}) == Standing::fresh);
  CHECK(next.standing({bob, 1}) == Standing::expired);
}

TEST_CASE("what replicas have seen is bounded; who was away for longest is forgotten first", "[reply_cache]") {
  ReplyCache::Seen seen;
  for (std::uint64_t i = 0; i < ReplyCache::max_initiators + 10; ++i) {
    NodeId id = bob;
    id.bytes[1] = static_cast<std::uint8_t>(i >> 8);
    id.bytes[2] = static_cast<std::uint8_t>(i);
    seen[id] = 1'000 + i;
  }
  ReplyCache(lifetime_us).add_seen(seen);
  REQUIRE(seen.size() == ReplyCache::max_initiators);
  for (const auto& [id, last] : seen)
    CHECK(last >= 1'010);
}

TEST_CASE("a reply that was repeated because it was overdue is given time again", "[reply_cache]") {
  ReplyCache cache(lifetime_us);
  answer(cache, {alice, 1}, 0);
  CHECK(cache.mark_overdue(alice, 9, 10) == 0);
  CHECK(cache.mark_overdue(alice, 10, 10) == 1);
  CHECK(cache.take_unsent().size() == 1);
  CHECK(cache.mark_overdue(alice, 19, 10) == 0);
  CHECK(cache.mark_overdue(alice, 20, 10) == 1);
}
