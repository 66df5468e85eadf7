#include "gossip/membership/membership_messages.hpp"

#include "catch.hpp"

namespace gossamer {
namespace {

MemberRecord record(std::uint8_t number, std::string address = "tcp://10.0.0.1:7946") {
  MemberRecord made{.incarnation = 1, .address = std::move(address)};
  made.node.bytes[0] = number;
  return made;
}

MembershipMessage carrying(MembershipBody body) {
  MembershipMessage message;
  message.body = std::move(body);
  return message;
}

TEST_CASE("Records need an identity, and an address unless they can only dial") {
  CHECK(valid(record(1)));
  CHECK_FALSE(valid(record(0)));
  CHECK_FALSE(valid(record(1, "")));
  CHECK(valid(record(1, std::string(max_member_address_bytes, 'a'))));
  CHECK_FALSE(valid(record(1, std::string(max_member_address_bytes + 1, 'a'))));
  MemberRecord dial_only = record(1, "");
  dial_only.dial_only = true;
  CHECK(valid(dial_only));
}

TEST_CASE("Every bound of a message is checked") {
  CHECK(valid(carrying(Ping{})));
  CHECK_FALSE(valid(carrying(PingRequest{.target = record(0)})));
  CHECK_FALSE(valid(carrying(PingRequest{.patience_us = max_patience_us + 1, .target = record(1)})));
  CHECK(valid(carrying(Sync{.sender = record(1), .entries = {max_sync_entries, {record(2), Claim::alive}}})));
  CHECK_FALSE(valid(carrying(Sync{.sender = record(1), .entries = {max_sync_entries + 1, {record(2), Claim::alive}}})));
  CHECK_FALSE(valid(carrying(Sync{.sender = record(1), .entries = {{record(2), Claim::dead}}})));
  CHECK_FALSE(valid(carrying(Sync{.sender = record(0)})));
  CHECK_FALSE(valid(carrying(Join{record(0)})));
  CHECK(valid(carrying(ForwardJoin{record(1), max_walk_hops})));
  CHECK_FALSE(valid(carrying(ForwardJoin{record(1), max_walk_hops + 1})));
  CHECK_FALSE(valid(carrying(NeighbourRequest{record(0)})));
  CHECK_FALSE(valid(carrying(NeighbourReply{record(0)})));
  CHECK(valid(carrying(Shuffle{record(1), max_walk_hops, {max_shuffle_records, record(2)}})));
  CHECK_FALSE(valid(carrying(Shuffle{record(1), max_walk_hops + 1, {}})));
  CHECK_FALSE(valid(carrying(Shuffle{record(1), 0, {max_shuffle_records + 1, record(2)}})));
  CHECK_FALSE(valid(carrying(ShuffleReply{{record(0)}})));

  MembershipMessage message = carrying(News{});
  message.rumours.assign(max_message_rumours, {.subject = record(1)});
  CHECK(valid(message));
  message.rumours.push_back({.subject = record(1)});
  CHECK_FALSE(valid(message));
  message.rumours.assign(1, {.claim = static_cast<Claim>(max_claim + 1), .subject = record(1)});
  CHECK_FALSE(valid(message));
  message.rumours.assign(1, {.hops = max_rumour_hops + 1, .subject = record(1)});
  CHECK_FALSE(valid(message));
  message.rumours.assign(1, {.claim = Claim::dead, .subject = record(1, "")});
  CHECK(valid(message));
  message.rumours.assign(1, {.claim = Claim::dead, .subject = record(0, "")});
  CHECK_FALSE(valid(message));
}

TEST_CASE("Messages take the bytes of their fields") {
  CHECK(wire_bytes(record(1)) == 16 + 8 + 1 + 1 + 19);
  CHECK(wire_bytes(carrying(News{})) == 12);
  CHECK(wire_bytes(carrying(Ping{})) == 12 + 4);
  CHECK(wire_bytes(carrying(PingRequest{.target = record(1)})) == 12 + 4 + 4 + 45);
  CHECK(wire_bytes(carrying(Sync{.sender = record(1), .entries = {2, {record(2), Claim::alive}}})) ==
        12 + 45 + 2 + 2 * 46);
  CHECK(wire_bytes(carrying(Shuffle{record(1), 6, {2, record(2)}})) == 12 + 45 + 1 + 1 + 2 * 45);
  MembershipMessage message = carrying(News{});
  message.rumours.push_back({.claim = Claim::dead, .subject = record(1)});
  CHECK(wire_bytes(message) == 12 + 26);
  message.rumours.push_back({.claim = Claim::suspected, .subject = record(1)});
  message.rumours.push_back({.subject = record(1)});
  CHECK(wire_bytes(message) == 12 + 26 + 42 + 47);
}

}  // namespace
}  // namespace gossamer
