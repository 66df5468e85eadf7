#include "gossip/membership/rumours.hpp"

#include "catch.hpp"
#include "node_id.hpp"

namespace gossamer::gossip {
namespace {

using gossamer::test::node_id;

Rumour dead(std::size_t number, std::uint64_t incarnation = 1) {
  Rumour rumour{.claim = Claim::dead};
  rumour.subject.node = node_id(number);
  rumour.subject.incarnation = incarnation;
  return rumour;
}

std::vector<Rumour> take(RumourQueue& queue, unsigned limit, std::size_t bytes = max_message_rumour_bytes) {
  std::vector<Rumour> rumours;
  queue.take(rumours, bytes, limit, NodeId{});
  return rumours;
}

TEST_CASE("News is sent as often as allowed, then forgotten") {
  RumourQueue queue;
  queue.push(dead(1));
  for (int i = 0; i < 3; ++i)
    CHECK(take(queue, 3).size() == 1);
  CHECK(take(queue, 3).empty());
  CHECK(queue.empty());
}

TEST_CASE("What was sent least often goes first, the newest of it before the rest") {
  RumourQueue queue;
  queue.push(dead(1));
  take(queue, 9);
  queue.push(dead(2));
  queue.push(dead(3));
  const std::size_t two = 2 * wire_bytes(dead(1));
  const std::vector<Rumour> first = take(queue, 9, two);
  REQUIRE(first.size() == 2);
  CHECK(first[0].subject.node == node_id(3));
  CHECK(first[1].subject.node == node_id(2));
}

TEST_CASE("Newer news about a node replaces the older") {
  RumourQueue queue;
  queue.push(dead(1, 5));
  queue.push(dead(1, 6));
  CHECK(queue.size() == 1);
  CHECK(take(queue, 9).front().subject.incarnation == 6);
}

TEST_CASE("Accusations by different nodes stand side by side until there is other news") {
  RumourQueue queue;
  const auto accusation = [](std::size_t accuser, std::uint64_t incarnation) {
    Rumour rumour = dead(1, incarnation);
    rumour.claim = Claim::suspected;
    rumour.accuser = node_id(accuser);
    return rumour;
  };
  queue.push(accusation(2, 1));
  queue.push(accusation(3, 1));
  queue.push(accusation(3, 1));
  CHECK(queue.size() == 2);
  CHECK(take(queue, 9).size() == 2);
  queue.push(accusation(4, 2));  // a later incarnation: accusations of the earlier one are refuted
  CHECK(queue.size() == 1);
  queue.push(accusation(5, 2));
  queue.push(dead(1, 2));
  CHECK(queue.size() == 1);
  queue.push(accusation(5, 2));
  CHECK(queue.size() == 1);
}

TEST_CASE("The queue and what it puts on a message are bounded") {
  RumourQueue queue;
  for (std::size_t i = 0; i < 3 * max_queued_rumours; ++i)
    queue.push(dead(i));
  CHECK(queue.size() == max_queued_rumours);
  const std::vector<Rumour> rumours = take(queue, 9);
  CHECK(rumours.size() == max_message_rumours);
  CHECK(rumours.front().subject.node == node_id(3 * max_queued_rumours - 1));
  CHECK(take(queue, 9, 10).empty());
}

TEST_CASE("Nobody is sent news about itself by the queue") {
  RumourQueue queue;
  queue.push(dead(1));
  std::vector<Rumour> rumours;
  queue.take(rumours, max_message_rumour_bytes, 9, node_id(1));
  CHECK(rumours.empty());
}

TEST_CASE("Memory of what was heard is bounded, and young memories stay") {
  HeardClaims heard;
  for (std::size_t i = 0; i < max_heard; ++i)
    CHECK(heard.put(node_id(i), 1, Claim::dead, static_cast<TimeUs>(i)));
  CHECK_FALSE(heard.put(node_id(max_heard), 1, Claim::dead, min_heard_us - 1));
  CHECK(heard.put(node_id(max_heard), 1, Claim::dead, min_heard_us));
  CHECK(heard.items().size() == max_heard);
  CHECK(heard.find(node_id(0)) == nullptr);
  CHECK(heard.find(node_id(1)) != nullptr);
  heard.expire(max_heard_us + min_heard_us);
  CHECK(heard.items().size() == 1);
}

TEST_CASE("A node is gone until a larger incarnation of it is heard of") {
  HeardClaims heard;
  heard.put(node_id(1), 7, Claim::left, 0);
  CHECK(heard.gone(node_id(1), 7));
  CHECK_FALSE(heard.gone(node_id(1), 8));
  CHECK_FALSE(heard.gone(node_id(2), 0));
  heard.put(node_id(1), 8, Claim::alive, 0);
  CHECK_FALSE(heard.gone(node_id(1), 8));
}

}  // namespace
}  // namespace gossamer::gossip
