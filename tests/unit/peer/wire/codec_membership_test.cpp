// Tests membership messages as frames and back: each comes back as it was, what is outside its bounds is refused, and
// damage never gives an invalid message.

#include <cstring>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "peer/wire/capnp.hpp"
#include "peer/wire/codec.hpp"

using namespace gossamer;
using peer::decode;
using peer::encode;
using peer::Frames;

namespace {

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes.fill(number);
  return id;
}
MemberRecord record(std::uint8_t number) {
  return {node(number), 0x0123456789abcdefULL + number, false, "tcp://10.0.0.1:" + std::to_string(7000 + number)};
}
MemberRecord dial_only(std::uint8_t number) {
  return {node(number), number, true, {}};
}

std::vector<MembershipBody> bodies() {
  return {News{},
          Ping{7, true},
          PingRequest{8, 400'000, record(9)},
          Ack{10},
          Nack{11},
          Sync{record(1), true, {{record(2), Claim::alive}, {dial_only(3), Claim::suspected}}},
          Sync{dial_only(1), false, {}},
          Join{dial_only(4)},
          ForwardJoin{record(5), 6},
          NeighbourRequest{record(6), true},
          NeighbourReply{record(7), true},
          Disconnect{},
          Shuffle{record(8), 5, {record(9), record(10)}},
          ShuffleReply{{record(11)}},
          Leave{}};
}

MembershipMessage message_with(MembershipBody body) {
  MembershipMessage message;
  message.incarnation = 42;
  message.partial = true;
  message.rumours = {{Claim::alive, true, 3, record(20), {}},
                     {Claim::suspected, false, 1, {node(21), 5, false, {}}, node(22)},
                     {Claim::dead, true, 24, {node(23), 6, false, {}}, {}},
                     {Claim::left, true, 0, {node(24), 7, false, {}}, {}}};
  message.body = std::move(body);
  return message;
}

bool same(const Frames& a, const Frames& b) {
  return std::ranges::equal(a.header.data, b.header.data);
}

/// Whether a message is accepted that encode() would not make. The test fills in its struct.
template <class Fill>
bool accepted(Fill fill) {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<peer::wire::Header>().initMembership());
  const auto words = capnp::messageToFlatArray(builder);
  std::vector<std::uint8_t> bytes(words.asBytes().begin(), words.asBytes().end());
  Frames frames;
  frames.header = Bytes::adopt(std::move(bytes));
  return decode(frames).has_value();
}

capnp::Data::Reader data_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.data(), bytes.size()};
}

void fill_record(peer::wire::MemberRecord::Builder out, std::size_t node_bytes = 16, std::size_t address_bytes = 20) {
  const std::string address(address_bytes, 'a');
  out.setNode(data_of(std::vector<std::uint8_t>(node_bytes, 7)));
  out.setAddress({address.c_str(), address.size()});
}

}  // namespace

TEST_CASE("every membership message comes back as it was") {
  for (const MembershipBody& body : bodies()) {
    INFO(body.index());
    const MembershipMessage sent = message_with(body);
    const Frames frames = encode(sent);
    CHECK(frames.payload_count == 0);
    const auto packet = decode(frames);
    REQUIRE(packet);
    const auto& back = std::get<MembershipMessage>(*packet);
    CHECK(back.incarnation == 42);
    CHECK(back.partial);
    CHECK(back.body.index() == body.index());
    REQUIRE(back.rumours.size() == sent.rumours.size());
    for (std::size_t i = 0; i < sent.rumours.size(); ++i) {
      CHECK(back.rumours[i].claim == sent.rumours[i].claim);
      CHECK(back.rumours[i].spread == sent.rumours[i].spread);
      CHECK(back.rumours[i].hops == sent.rumours[i].hops);
      CHECK(back.rumours[i].subject == sent.rumours[i].subject);
      CHECK(back.rumours[i].accuser == sent.rumours[i].accuser);
    }
    CHECK(same(encode(back), frames));
  }
  const auto packet = decode(encode(message_with(bodies()[5])));
  const auto& sync = std::get<Sync>(std::get<MembershipMessage>(*packet).body);
  CHECK(sync.sender == record(1));
  CHECK(sync.answer_wanted);
  CHECK(sync.entries[1].record == dial_only(3));
  CHECK(sync.entries[1].claim == Claim::suspected);
}

TEST_CASE("the largest membership message fits a header, and a probe is small") {
  MemberRecord long_record = record(1);
  long_record.address.resize(max_member_address_bytes, 'x');
  MembershipMessage message;
  message.rumours.assign(max_message_rumours, {.subject = long_record});
  message.body = Sync{long_record, true, {max_sync_entries, {long_record, Claim::alive}}};
  const Frames frames = encode(message);
  CHECK(frames.bytes() <= peer::max_header_bytes);
  CHECK(decode(frames));

  MembershipMessage probe;
  probe.body = Ping{1, false};
  CHECK(encode(probe).bytes() <= 120);
}

TEST_CASE("membership messages outside their bounds are refused") {
  using Builder = peer::wire::Membership::Builder;
  CHECK(accepted([](Builder) {}));
  CHECK(accepted([](Builder m) { fill_record(m.initJoin()); }));
  CHECK_FALSE(accepted([](Builder m) { m.initJoin(); }));  // no identity
  CHECK_FALSE(accepted([](Builder m) { fill_record(m.initJoin(), 15); }));
  CHECK_FALSE(accepted([](Builder m) { fill_record(m.initJoin(), 17); }));
  CHECK_FALSE(accepted([](Builder m) { fill_record(m.initJoin(), 16, max_member_address_bytes + 1); }));
  CHECK_FALSE(accepted([](Builder m) { fill_record(m.initJoin(), 16, 0); }));  // no address, although it can be dialled
  CHECK_FALSE(accepted([](Builder m) {
    auto records = m.initShuffleReply(max_shuffle_records + 1);
    for (auto record : records)
      fill_record(record);
  }));
  CHECK_FALSE(accepted([](Builder m) {
    auto rumours = m.initRumours(max_message_rumours + 1);
    for (auto rumour : rumours)
      fill_record(rumour.initSubject());
  }));
  const auto rumour_with = [](std::uint8_t claim, std::uint8_t hops, std::size_t accuser_bytes) {
    return accepted([&](Builder m) {
      auto rumour = m.initRumours(1)[0];
      rumour.setClaim(claim);
      rumour.setHops(hops);
      rumour.setAccuser(data_of(std::vector<std::uint8_t>(accuser_bytes, 1)));
      fill_record(rumour.initSubject());
    });
  };
  CHECK(rumour_with(1, max_rumour_hops, 16));
  CHECK_FALSE(rumour_with(1, max_rumour_hops, 0));
  CHECK_FALSE(rumour_with(4, 0, 16));
  CHECK_FALSE(rumour_with(2, max_rumour_hops + 1, 16));
  CHECK_FALSE(accepted([](Builder m) {
    auto sync = m.initSync();
    fill_record(sync.initSender());
    auto entry = sync.initEntries(1)[0];
    fill_record(entry.initRecord());
    entry.setClaim(2);  // dead members have no entries
  }));
  Frames with_payload = encode(message_with(News{}));
  with_payload.payload_count = 1;
  CHECK_FALSE(decode(with_payload));
}

TEST_CASE("a membership message of a kind that only newer nodes know is told apart") {
  capnp::MallocMessageBuilder builder;
  auto membership = builder.initRoot<peer::wire::Header>().initMembership();
  membership.setLeave();
  auto words = capnp::messageToFlatArray(builder);
  // The tag of the body's union is the one 16-bit word that holds the number of `leave`.
  std::vector<std::uint8_t> bytes(words.asBytes().begin(), words.asBytes().end());
  const auto leave = static_cast<std::uint16_t>(peer::wire::Membership::LEAVE);
  std::size_t changed = 0;
  for (std::size_t at = 24; at + 1 < bytes.size(); at += 2) {
    std::uint16_t value = 0;
    std::memcpy(&value, &bytes[at], sizeof value);
    if (value != leave) continue;
    const std::uint16_t future = leave + 1;
    std::memcpy(&bytes[at], &future, sizeof future);
    ++changed;
  }
  REQUIRE(changed == 1);
  Frames frames;
  frames.header = Bytes::adopt(std::move(bytes));
  const auto packet = decode(frames);
  REQUIRE_FALSE(packet);
  CHECK(packet.error().kind == peer::DecodeError::Kind::unknown);
}

TEST_CASE("random damage never gives an invalid membership message") {
  gossip::Random random(77);
  std::vector<Frames> sound;
  for (const MembershipBody& body : bodies())
    sound.push_back(encode(message_with(body)));
  int taken = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Frames& frames = sound[random.below(sound.size())];
    std::vector<std::uint8_t> header(frames.header.size());
    std::memcpy(header.data(), frames.header.data.data(), header.size());
    if (random.below(8) == 0) header.resize(8 * random.below(header.size() / 8));
    for (std::uint64_t flips = 1 + random.below(6); flips > 0 && !header.empty(); --flips)
      header[random.below(header.size())] = static_cast<std::uint8_t>(random.next());
    Frames damaged;
    damaged.header = Bytes::adopt(std::move(header));
    const auto packet = decode(damaged);
    if (!packet) {
      ++refused;
    } else if (const auto* message = std::get_if<MembershipMessage>(&*packet)) {
      ++taken;
      REQUIRE(valid(*message));
      REQUIRE(decode(encode(*message)));
    }
  }
  CHECK(taken > 1'000);
  CHECK(refused > 1'000);
}
