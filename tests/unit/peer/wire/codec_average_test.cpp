// Tests the messages of collectives as frames and back.

#include <algorithm>

#include "catch.hpp"
#include "gossip/random.hpp"
#include "peer/wire/codec.hpp"
#include "peer/wire/validate.hpp"

using namespace gossamer;
using namespace gossamer::gossip;
using namespace gossamer::peer;

namespace {

Participant participant(std::size_t i) {
  Participant one{.life = i + 1};
  one.node.bytes[0] = 200;
  one.node.bytes[15] = static_cast<std::uint8_t>(i);
  return one;
}

RoundPlan plan_of(std::size_t members) {
  RoundPlan plan{.made_at = {3, participant(9)}};
  for (std::size_t i = 0; i < members; ++i) {
    plan.contributions.push_back({participant(i), i + 5});
    plan.members.push_back(participant(i));
    plan.voters.push_back(participant(i));
  }
  return plan;
}

std::vector<Contribution> taken_of(std::size_t count) {
  std::vector<Contribution> taken;
  for (std::size_t i = 0; i < count; ++i)
    taken.push_back({participant(i), max_average_round - i});
  return taken;
}

AverageNote note_with(decltype(AverageMessage::body) body) {
  return {.collective = {1, 2},
          .from = participant(1),
          .to = participant(2),
          .message = {.founding = {77, participant(3)}, .round = 8, .body = std::move(body)}};
}

std::vector<AverageNote> notes() {
  const Ballot ballot{4, participant(1)};
  const RoundPlan plan = plan_of(3);
  std::vector<AverageNote> all;
  for (decltype(AverageMessage::body) body : std::vector<decltype(AverageMessage::body)>{
           RoundReady{7, false, 3}, RoundReady{}, RoundReady{{}, true}, RoundPrepare{ballot},
           RoundPromise{ballot, {}, {7}},
           RoundPromise{ballot, RoundPromise::Accepted{{2, participant(0)}, plan}, {{}, true}}, RoundRefusal{ballot},
           RoundProposal{ballot, plan}, RoundAccept{ballot}, RoundCommit{plan}, RoundCommit{plan_of(0)},
           RoundEnter{plan, taken_of(2)}, RoundEnter{plan_of(max_average_members), taken_of(max_taken)}, RoundJoin{},
           RoundHeard{}, RoundNobody{}, RoundWaits{{participant(4), participant(5)}}, RoundGone{},
           RoundAsk{{RoundPart::Kind::result, ballot, 12}}})
    all.push_back(note_with(std::move(body)));
  return all;
}

AverageValues values_of_test() {
  return {.collective = {1, 2},
          .from = participant(1),
          .to = participant(2),
          .founding = {77, participant(3)},
          .round = 8,
          .part = {RoundPart::Kind::result, {4, participant(1)}, 12},
          .values = Bytes::adopt(std::vector<float>{1, 2, 3})};
}

bool same(const Frames& a, const Frames& b) {
  return std::ranges::equal(a.header.data, b.header.data) && a.payload_count == b.payload_count &&
         std::ranges::equal(a.payload[0].data, b.payload[0].data);
}

Message decoded(const Frames& frames) {
  auto packet = decode(frames);
  REQUIRE(packet);
  return std::get<Message>(std::move(*packet));
}

}  // namespace

TEST_CASE("every message of a collective comes back as it was") {
  for (const AverageNote& note : notes()) {
    INFO(note.message.body.index());
    const Frames frames = encode(note);
    CHECK(channel_of(note) == Channel::control);
    const auto back = std::get<AverageNote>(decoded(frames));
    CHECK(back.collective == note.collective);
    CHECK(back.from == note.from);
    CHECK(back.to == note.to);
    CHECK(back.message.founding == note.message.founding);
    CHECK(back.message.round == note.message.round);
    CHECK(back.message.body.index() == note.message.body.index());
    CHECK(same(encode(back), frames));
  }
  const auto enter = std::get<RoundEnter>(std::get<AverageNote>(decoded(encode(notes()[11]))).message.body);
  CHECK(enter.plan == plan_of(3));
  CHECK(enter.taken == taken_of(2));
  const auto promise = std::get<RoundPromise>(std::get<AverageNote>(decoded(encode(notes()[5]))).message.body);
  CHECK(promise.accepted->plan == plan_of(3));
  CHECK(promise.accepted->ballot == Ballot{2, participant(0)});
  CHECK(promise.ready.leaves);
  CHECK(!promise.ready.contribution);
}

TEST_CASE("the values of a collective come back without a copy") {
  const AverageValues values = values_of_test();
  const Frames frames = encode(values);
  CHECK(channel_of(values) == Channel::bulk);
  CHECK(frames.payload[0].data.data() == values.values.data.data());
  const auto back = std::get<AverageValues>(decoded(frames));
  CHECK(back.part.made_at == values.part.made_at);
  CHECK(back.part.fragment == 12);
  CHECK(back.part.kind == RoundPart::Kind::result);
  CHECK(back.founding == values.founding);
  CHECK(same(encode(back), frames));
}

TEST_CASE("messages of a collective against the rules are refused") {
  const auto faulty = [](auto change) {
    AverageNote note = note_with(RoundProposal{{4, participant(1)}, plan_of(4)});
    change(note, std::get<RoundProposal>(note.message.body).plan);
    return fault_of(Message(note)).has_value();
  };
  CHECK_FALSE(faulty([](AverageNote&, RoundPlan&) {}));
  CHECK(faulty([](AverageNote& note, RoundPlan&) { note.from.life = 0; }));
  CHECK(faulty([](AverageNote& note, RoundPlan&) { note.message.round = max_average_round + 1; }));
  CHECK(faulty([](AverageNote&, RoundPlan& plan) { std::swap(plan.members[0], plan.members[1]); }));
  CHECK(faulty([](AverageNote&, RoundPlan& plan) { plan.members[1] = plan.members[0]; }));
  CHECK(faulty([](AverageNote&, RoundPlan& plan) { plan.contributions[1].from = plan.contributions[0].from; }));
  CHECK(faulty([](AverageNote&, RoundPlan& plan) { plan.voters.clear(); }));
  CHECK(faulty([](AverageNote&, RoundPlan& plan) { plan.voters.push_back(participant(9)); }));
  CHECK(faulty([](AverageNote&, RoundPlan& plan) { plan = plan_of(max_average_members + 1); }));
  AverageNote ask = note_with(RoundAsk{{.fragment = max_fragments + 1}});
  CHECK(fault_of(Message(ask)));
  for (auto change : std::vector<void (*)(AverageValues&)>{
           [](AverageValues& values) { values.values = {}; }, [](AverageValues& values) { values.to.life = 0; },
           [](AverageValues& values) { values.part.kind = static_cast<RoundPart::Kind>(2); }}) {
    AverageValues values = values_of_test();
    change(values);
    CHECK(fault_of(Message(values)));
  }
}

TEST_CASE("random damage never gives an invalid message of a collective") {
  Random random(5);
  for (const AverageNote& note : notes()) {
    const Frames frames = encode(note);
    const std::vector<std::byte> sound(frames.header.data.begin(), frames.header.data.end());
    for (int i = 0; i < 300; ++i) {
      std::vector<std::byte> damaged = sound;
      for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
        damaged[random.below(damaged.size())] = static_cast<std::byte>(random.next());
      Frames broken = frames;
      broken.header = Bytes::adopt(std::move(damaged));
      const auto packet = decode(broken);
      if (!packet || !std::holds_alternative<Message>(*packet)) continue;
      CHECK(!fault_of(std::get<Message>(*packet)));
    }
  }
}
