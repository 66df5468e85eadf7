#include "gossip/membership/membership.hpp"

#include <algorithm>
#include <limits>

#include "catch.hpp"

namespace gossamer::gossip {
namespace {

using Change = Membership::Change;

MemberRecord record(std::size_t number, std::uint64_t incarnation = 1, bool dial_only = false) {
  MemberRecord made{.incarnation = incarnation, .dial_only = dial_only, .address = "tcp://n" + std::to_string(number)};
  made.node.bytes[0] = static_cast<std::uint8_t>(number);
  made.node.bytes[1] = static_cast<std::uint8_t>(number >> 8);
  made.node.bytes[15] = 1;
  return made;
}

/// One node. The test plays the rest of the cluster.
struct Fixture {
  explicit Fixture(MembershipOptions options = {}, bool dial_only = false)
      : options_(options), membership(options, record(0, 1, dial_only), Random(7), 0) {}

  void receive(std::size_t from, MembershipBody body, std::uint64_t incarnation = 1, std::vector<Rumour> rumours = {}) {
    MembershipMessage message;
    message.incarnation = incarnation;
    message.rumours = std::move(rumours);
    message.body = std::move(body);
    membership.receive(record(from).node, message, now_us, out);
  }
  void hear(std::size_t from, Claim claim, std::size_t subject, std::uint64_t incarnation, std::size_t accuser = 99) {
    Rumour rumour{.claim = claim, .subject = record(subject, incarnation), .accuser = record(accuser).node};
    receive(from, News{}, 1, {rumour});
  }
  void add(std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i)
      receive(i, Join{record(i)});
    clear();
  }
  /// Lets time pass in steps of a tick. With `answering`, every other node answers pings.
  void run(TimeUs duration_us, bool answering) {
    const TimeUs end_us = now_us + duration_us;
    while (now_us < end_us) {
      now_us += options_.tick_us;
      const std::size_t before = out.send.size();
      membership.tick(now_us, out);
      const std::vector<Membership::Send> sent(out.send.begin() + static_cast<std::ptrdiff_t>(before), out.send.end());
      for (const Membership::Send& send : sent) {
        const auto* ping = std::get_if<Ping>(&send.message.body);
        if (ping == nullptr || !answering) continue;
        MembershipMessage ack;
        ack.incarnation = membership.find(send.to) != nullptr ? membership.find(send.to)->record.incarnation : 1;
        ack.body = Ack{ping->sequence};
        membership.receive(send.to, ack, now_us, out);
      }
    }
  }
  [[nodiscard]] std::size_t count(Change change) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(out.events, [&](const Membership::Event& event) { return event.change == change; }));
  }
  [[nodiscard]] bool happened(Change change, std::size_t node) const {
    return std::ranges::any_of(out.events, [&](const Membership::Event& event) {
      return event.change == change && event.node == record(node).node;
    });
  }
  template <class Body>
  [[nodiscard]] std::vector<Membership::Send> sent() const {
    std::vector<Membership::Send> found;
    std::ranges::copy_if(out.send, std::back_inserter(found),
                         [](const Membership::Send& send) { return std::holds_alternative<Body>(send.message.body); });
    return found;
  }
  void clear() { out = {}; }

  MembershipOptions options_;
  Membership membership;
  Membership::Actions out;
  TimeUs now_us = 0;
};

TEST_CASE("Who joins is a member, is told the others, and is to be linked to") {
  Fixture f;
  f.receive(1, Join{record(1)});
  CHECK(f.happened(Change::joined, 1));
  f.receive(2, Join{record(2)});
  const auto syncs = f.sent<Sync>();
  REQUIRE(syncs.size() == 2);
  CHECK(std::get<Sync>(syncs[1].message.body).entries.size() == 2);
  CHECK(f.membership.members().size() == 2);
  CHECK(f.out.dial.size() == 2);
  CHECK(f.membership.view().size() == 2);
}

TEST_CASE("A claim about oneself is refuted with a larger incarnation") {
  for (const Claim claim : {Claim::suspected, Claim::dead, Claim::left}) {
    Fixture f;
    f.add(3);
    f.hear(1, claim, 0, 41);
    CHECK(f.membership.self().incarnation == 42);
    f.hear(2, claim, 0, 41);  // an old one by now
    CHECK(f.membership.self().incarnation == 42);
    f.run(us_per_s, true);
    const bool told = std::ranges::any_of(f.out.send, [](const Membership::Send& send) {
      return std::ranges::any_of(send.message.rumours, [](const Rumour& rumour) {
        return rumour.claim == Claim::alive && rumour.subject == record(0, 42);
      });
    });
    CHECK(told);
  }
}

TEST_CASE("A node whose former life was numbered far ahead, by a clock or by somebody with its key, comes back") {
  const std::uint64_t ahead = GENERATE(std::uint64_t{1} << 51, last_incarnation);
  const std::uint64_t outbid = std::min(ahead + 1, last_incarnation);
  Fixture holder;
  holder.receive(1, Join{record(1, ahead)}, ahead);
  holder.receive(2, Join{record(2)});
  holder.run(60 * us_per_s, false);
  REQUIRE(holder.membership.considers_gone(record(1).node));
  Membership back({}, record(1), Random(1), 0);
  Membership::Actions out;
  // Its word counts only once it has refuted what the other one holds, which it is told with each message.
  for (int i = 0; i < 2; ++i) {
    holder.clear();
    holder.receive(1, Join{back.self()}, back.self().incarnation);
    for (const Membership::Send& send : holder.out.send)
      if (send.to == record(1).node) back.receive(record(0).node, send.message, 0, out);
  }
  CHECK(back.self().incarnation == outbid);
  CHECK(holder.membership.find(record(1).node) != nullptr);
  // The same for what is told in a table: it is held alive there.
  Membership early({}, record(1), Random(1), 0);
  MembershipMessage table;
  table.body = Sync{.sender = record(0), .entries = {{record(1, ahead), Claim::alive}}};
  early.receive(record(0).node, table, 0, out);
  CHECK(early.self().incarnation == outbid);
}

TEST_CASE("The largest incarnation locks nobody out") {
  constexpr std::uint64_t largest = last_incarnation;
  // Nobody believes a claim of an impossible incarnation, neither its subject nor the others.
  Fixture f;
  f.add(3);
  f.hear(1, Claim::dead, 0, largest + 1);
  CHECK(f.membership.self().incarnation == 1);
  f.now_us = 10 * us_per_s;
  f.hear(1, Claim::dead, 2, largest + 1);
  f.hear(1, Claim::suspected, 2, largest + 1);
  f.hear(1, Claim::alive, 2, largest + 1);
  // Nobody believes the node itself, either. Somebody else may have its key, or its daemon may have a fault.
  f.receive(2, News{}, largest + 1);
  f.receive(2, Join{record(2, largest + 1)}, 1);
  f.receive(2, Leave{}, std::numeric_limits<std::uint64_t>::max());
  CHECK(f.membership.counters().implausible == 7);
  CHECK(f.membership.find(record(2).node)->record.incarnation == 1);
  // The same holds in every other message that describes a node.
  const MemberRecord impossible = record(2, largest + 1);
  f.receive(1, PingRequest{.target = impossible});
  f.receive(2, Sync{.sender = impossible});
  f.receive(1, Sync{.sender = record(1), .entries = {{impossible, Claim::alive}}});
  f.receive(1, ForwardJoin{.newcomer = impossible});
  f.receive(2, NeighbourRequest{.sender = impossible});
  f.receive(2, NeighbourReply{.sender = impossible});
  f.receive(2, Shuffle{.origin = impossible});
  f.receive(1, Shuffle{.origin = record(1), .records = {impossible}});
  f.receive(1, ShuffleReply{.records = {impossible}});
  CHECK(f.membership.counters().implausible == 16);
  CHECK(f.membership.find(record(2).node)->record.incarnation == 1);

  // A node that was driven up to the largest incarnation stays there. Its own word then decides.
  Membership high({}, record(0, largest - 1), Random(1), 0);
  Membership::Actions out;
  MembershipMessage accusation;
  accusation.rumours.push_back({.claim = Claim::dead, .subject = record(0, largest)});
  high.receive(record(1).node, accusation, 0, out);
  CHECK(high.self().incarnation == largest);
  high.receive(record(1).node, accusation, 0, out);
  CHECK(high.self().incarnation == largest);

  f.receive(3, News{}, largest);  // the node says so itself
  CHECK(f.membership.find(record(3).node)->record.incarnation == largest);
  f.now_us = 30 * us_per_s;
  f.membership.tick(f.now_us, f.out);
  f.clear();
  f.hear(1, Claim::dead, 3, largest);
  CHECK(f.happened(Change::died, 3));
  f.receive(3, Ping{}, largest);
  CHECK(f.happened(Change::alive_again, 3));
}

TEST_CASE("A silent member is suspected, and dead when nobody has heard of it in time") {
  Fixture f;
  f.add(1);
  f.run(3 * us_per_s, false);
  CHECK(f.happened(Change::suspected, 1));
  CHECK_FALSE(f.happened(Change::died, 1));
  f.run(6 * us_per_s, false);
  CHECK(f.happened(Change::died, 1));
  CHECK(f.membership.members().empty());
  CHECK(f.membership.considers_gone(record(1).node));
  CHECK(f.out.hang_up.size() == 1);
}

TEST_CASE("A member's own larger incarnation ends a suspicion, the same does not") {
  Fixture f;
  f.add(5);
  f.hear(2, Claim::suspected, 1, 1);
  CHECK(f.happened(Change::suspected, 1));
  f.receive(1, News{}, 1);
  CHECK_FALSE(f.happened(Change::refuted, 1));
  f.receive(1, News{}, 2);
  CHECK(f.happened(Change::refuted, 1));
  f.hear(2, Claim::suspected, 1, 1);
  CHECK(f.count(Change::suspected) == 1);
}

TEST_CASE("Whoever is suspected is told so with the next message") {
  Fixture f;
  f.add(5);
  f.hear(2, Claim::suspected, 1, 1);
  f.clear();
  f.receive(1, Ping{7});
  const auto acks = f.sent<Ack>();
  REQUIRE(acks.size() == 1);
  REQUIRE_FALSE(acks[0].message.rumours.empty());
  CHECK(acks[0].message.rumours[0].claim == Claim::suspected);
  CHECK(acks[0].message.rumours[0].subject.node == record(1).node);
}

TEST_CASE("That a member is dead is doubted by those who have just heard it, and believed by others") {
  Fixture f;
  f.add(5);
  f.now_us = us_per_s;
  f.receive(1, Ping{1});
  f.hear(2, Claim::dead, 1, 1);
  CHECK_FALSE(f.happened(Change::died, 1));
  CHECK(f.happened(Change::suspected, 1));
  CHECK(f.membership.counters().deaths_doubted == 1);
  f.now_us = 5 * us_per_s;
  f.membership.tick(f.now_us, f.out);
  f.hear(2, Claim::dead, 3, 1);
  CHECK(f.happened(Change::died, 3));
}

TEST_CASE("Who comes back with a larger incarnation is alive again, with the same it is not") {
  Fixture f;
  f.add(5);
  f.now_us = 5 * us_per_s;
  f.hear(2, Claim::dead, 1, 1);
  REQUIRE(f.happened(Change::died, 1));
  f.hear(3, Claim::alive, 1, 1);
  f.receive(1, Join{record(1, 1)});
  CHECK_FALSE(f.happened(Change::alive_again, 1));
  f.receive(1, Join{record(1, 2)});
  CHECK(f.happened(Change::alive_again, 1));
  CHECK(f.membership.find(record(1).node) != nullptr);
}

TEST_CASE("Who holds a dead member alive is told when tables are compared") {
  Fixture f;
  f.add(3);
  f.now_us = 10 * us_per_s;
  f.hear(1, Claim::dead, 2, 4);
  f.run(10 * us_per_s, true);  // by then the news is old
  f.clear();
  f.receive(3, Sync{.sender = record(3), .answer_wanted = true, .entries = {{record(2, 4), Claim::alive}}});
  const auto answers = f.sent<Sync>();
  REQUIRE(answers.size() == 1);
  const auto told = [](const Rumour& rumour) {
    return rumour.claim == Claim::dead && rumour.subject.node == record(2).node && rumour.subject.incarnation == 4;
  };
  CHECK(std::ranges::any_of(answers[0].message.rumours, told));
}

TEST_CASE("A restart too quick to be noticed ends the former life") {
  Fixture f;
  f.add(2);
  f.receive(1, Join{record(1, 1)});  // a repeated introduction is none
  CHECK(f.out.events.empty());
  f.receive(1, Join{record(1, 9)});
  REQUIRE(f.out.events.size() == 2);
  CHECK(f.out.events[0].change == Change::died);
  CHECK(f.out.events[1].change == Change::alive_again);
}

TEST_CASE("A helper passes an answer on, and says so if there is none") {
  Fixture f;
  f.add(3);
  f.receive(1, PingRequest{.sequence = 5, .patience_us = 400'000, .target = record(2)});
  auto pings = f.sent<Ping>();
  REQUIRE(pings.size() == 1);
  CHECK(pings[0].to == record(2).node);
  f.receive(2, Ack{std::get<Ping>(pings[0].message.body).sequence});
  auto acks = f.sent<Ack>();
  REQUIRE(acks.size() == 1);
  CHECK(acks[0].to == record(1).node);
  CHECK(std::get<Ack>(acks[0].message.body).sequence == 5);

  f.receive(1, PingRequest{.sequence = 6, .patience_us = 400'000, .target = record(3)});
  f.run(500'000, false);
  const auto nacks = f.sent<Nack>();
  REQUIRE(nacks.size() == 1);
  CHECK(std::get<Nack>(nacks[0].message.body).sequence == 6);
}

TEST_CASE("Others are asked before a member is suspected, and their nacks speak for this node's health") {
  Fixture f;
  f.add(5);
  while (f.sent<PingRequest>().empty())
    f.run(100'000, false);
  const auto requests = f.sent<PingRequest>();
  REQUIRE(requests.size() == 3);
  CHECK(f.membership.health_score() == 0);
  for (const Membership::Send& request : requests)
    f.receive(static_cast<std::size_t>(request.to.bytes[0]),
              Nack{std::get<PingRequest>(request.message.body).sequence});
  while (f.count(Change::suspected) == 0)
    f.run(100'000, false);
  CHECK(f.membership.health_score() == 0);
  f.run(4 * us_per_s, false);  // now without nacks
  CHECK(f.membership.health_score() >= 3);
}

TEST_CASE("After a pause of its own a node accuses nobody and answers for itself") {
  Fixture f;
  f.add(8);
  f.run(10 * us_per_s, true);
  f.hear(2, Claim::suspected, 1, 1);
  f.clear();
  f.now_us += 60 * us_per_s;
  const std::uint64_t before = f.membership.self().incarnation;
  f.run(3 * us_per_s, true);
  CHECK(f.membership.counters().pauses == 1);
  CHECK(f.membership.self().incarnation == before + 1);
  CHECK(f.count(Change::died) == 0);
  CHECK(f.count(Change::suspected) == 0);
}

TEST_CASE("Who leaves has left, not died") {
  Fixture f;
  f.add(2);
  f.receive(1, Leave{});
  CHECK(f.happened(Change::left, 1));
  CHECK(f.count(Change::died) == 0);
  f.membership.leave(f.now_us, f.out);
  CHECK(f.sent<Leave>().size() == 1);
  f.clear();
  f.run(2 * us_per_s, true);
  f.receive(2, Ping{});
  CHECK(f.out.send.empty());
}

TEST_CASE("A goodbye of a former life that comes late says nothing about the present one") {
  Fixture f;
  f.add(2);
  f.receive(1, Join{record(1, 5)}, 5);
  f.clear();
  f.receive(1, Leave{}, 4);
  CHECK(f.out.events.empty());
  CHECK(f.membership.find(record(1).node) != nullptr);
  f.receive(1, Leave{}, 5);
  CHECK(f.happened(Change::left, 1));
}

TEST_CASE("What is said of a former life is old for whoever has a link to the present one") {
  Fixture f;
  f.add(3);
  f.now_us = 20 * us_per_s;
  f.membership.link_up(record(2).node, 1, f.now_us, f.out);
  f.membership.link_up(record(3).node, 7, f.now_us, f.out);
  f.now_us = 40 * us_per_s;
  for (const std::size_t subject : {2, 3})
    f.hear(1, Claim::left, subject, 1);
  CHECK(f.happened(Change::left, 2));
  CHECK_FALSE(f.happened(Change::left, 3));
}

TEST_CASE("A lost link has the member probed at once") {
  Fixture f;
  f.add(20);
  f.run(2 * us_per_s, true);
  f.clear();
  f.membership.link_down(record(13).node, f.now_us, f.out);
  f.run(1'100'000, false);
  const auto pings = f.sent<Ping>();
  REQUIRE_FALSE(pings.empty());
  CHECK(pings[0].to == record(13).node);
}

/// The rumour of a node that has moved.
Rumour moved(std::size_t number, std::uint64_t incarnation, std::string address) {
  Rumour rumour{.claim = Claim::alive, .subject = record(number, incarnation)};
  rumour.subject.dial_only = address.empty();
  rumour.subject.address = std::move(address);
  return rumour;
}

TEST_CASE("Where a node is to be dialled from now on is told to all under a larger incarnation") {
  Fixture f;
  f.add(3);
  f.membership.relocate("tcp://elsewhere");
  CHECK(f.membership.self().incarnation == 2);
  CHECK(f.membership.self().address == "tcp://elsewhere");
  f.run(us_per_s, true);
  const auto telling = std::ranges::count_if(f.out.send, [](const Membership::Send& send) {
    return std::ranges::any_of(send.message.rumours, [](const Rumour& rumour) {
      return rumour.claim == Claim::alive && rumour.spread && rumour.subject == moved(0, 2, "tcp://elsewhere").subject;
    });
  });
  CHECK(telling >= 2);
  f.membership.relocate("");
  CHECK(f.membership.self().dial_only);
}

TEST_CASE("A member's new address is taken over, whether or not its incarnation came before") {
  for (const bool incarnation_first : {false, true}) {
    for (const std::size_t speaker : {1U, 2U}) {  // the node itself, or another
      INFO(incarnation_first << ' ' << speaker);
      Fixture f;
      f.add(3);
      if (incarnation_first) f.receive(1, Ack{7}, 2);
      CHECK(f.membership.find(record(1).node)->record.address == "tcp://n1");
      f.receive(speaker, News{}, speaker == 1 ? 2 : 1, {moved(1, 2, "tcp://elsewhere")});
      CHECK(f.membership.find(record(1).node)->record == moved(1, 2, "tcp://elsewhere").subject);
      CHECK(f.membership.queued_rumours() > 0);  // it passes the rumour on
      // An earlier statement that comes late no longer counts.
      f.receive(3, News{}, 1, {moved(1, 1, "tcp://n1")});
      f.receive(3, News{}, 1, {moved(1, 2, "tcp://a-lie")});
      CHECK(f.membership.find(record(1).node)->record.address == "tcp://elsewhere");
    }
  }
}

TEST_CASE("With partial views the address of a node in reserve is kept up to date") {
  MembershipOptions options;
  options.full_view_limit = 4;
  options.active_view = 3;
  Fixture f(options);
  f.add(20);
  REQUIRE(f.membership.partial());
  REQUIRE_FALSE(f.membership.passive_view().empty());
  const MemberRecord known = f.membership.passive_view().front().record;
  const NodeId neighbour = f.membership.members().front().record.node;
  MembershipMessage message;
  message.incarnation = 1;
  message.partial = true;
  MemberRecord elsewhere = known;
  elsewhere.incarnation = 2;
  elsewhere.address = "tcp://elsewhere";
  message.rumours.push_back({.claim = Claim::alive, .subject = elsewhere});
  f.membership.receive(neighbour, message, f.now_us, f.out);
  CHECK(f.membership.passive_view().front().record == elsewhere);
}

TEST_CASE("A node that can only dial out is neither dialled nor paired with another such") {
  Fixture f({}, true);
  f.receive(1, Join{record(1, 1, true)});
  CHECK(f.membership.members().empty());
  f.receive(2, Sync{.sender = record(2), .entries = {{record(1, 1, true), Claim::alive}}});
  CHECK(f.membership.members().size() == 2);
  CHECK(f.membership.view() == std::vector<NodeId>{record(2).node});
  f.run(5 * us_per_s, true);
  for (const Membership::Send& send : f.sent<Ping>())
    CHECK(send.to == record(2).node);

  Fixture open;
  open.receive(1, Join{record(1, 1, true)});
  CHECK(open.membership.view().size() == 1);
  CHECK(open.out.dial.empty());
}

TEST_CASE("Beyond the limit a node keeps a part of the members") {
  MembershipOptions options;
  options.full_view_limit = 20;
  Fixture f(options);
  f.add(20);
  CHECK_FALSE(f.membership.partial());
  f.receive(21, Join{record(21)});
  CHECK(f.membership.partial());
  CHECK(f.membership.members().size() == options.active_view);
  CHECK(f.membership.passive_view().size() == 21 - options.active_view);
  CHECK(f.membership.view().size() <= options.active_view + active_view_slack);
}

TEST_CASE("Who has a full view, and is no neighbour of a node with a partial one, is told that the cluster is large") {
  Fixture large({.full_view_limit = 3, .active_view = 1, .passive_view = 8});
  large.add(4);
  REQUIRE(large.membership.partial());
  large.clear();
  constexpr std::size_t stranger = 9;
  large.receive(stranger, Ping{1});
  const auto invitations = large.sent<NeighbourRequest>();
  REQUIRE(invitations.size() == 1);
  CHECK(invitations[0].to == record(stranger).node);
  const NodeId neighbour = large.membership.members().front().record.node;
  large.clear();
  MembershipMessage ping{.incarnation = 1, .body = Ping{2}};
  large.membership.receive(neighbour, ping, large.now_us, large.out);
  CHECK(large.sent<NeighbourRequest>().empty());

  Fixture small({.full_view_limit = 8, .active_view = 4, .passive_view = 16});
  small.add(1);
  small.clear();
  MembershipMessage invitation{.incarnation = 1, .partial = true, .body = NeighbourRequest{record(2), false}};
  small.membership.receive(record(2).node, invitation, small.now_us, small.out);
  CHECK(small.membership.partial());
  CHECK(small.membership.find(record(2).node) != nullptr);
  small.membership.check_invariants();
}

TEST_CASE("Members that a member invents keep nobody out, and take nobody's place") {
  Fixture f;
  f.add(5);
  const auto invent = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      f.hear(1, Claim::alive, 1'000 + i, 1 + i);
  };
  const auto keeps = [&](std::size_t count) {
    for (std::size_t i = 1; i <= count; ++i)
      CHECK(std::ranges::binary_search(f.membership.view(), record(i).node));
  };
  invent(200);
  CHECK_FALSE(f.membership.partial());
  CHECK(f.membership.members().size() == f.options_.full_view_limit);
  keeps(5);
  f.receive(6, Join{record(6)});
  invent(200);
  f.receive(7, Sync{.sender = record(7)}, 1,
            {{.claim = Claim::alive, .spread = true, .subject = record(2'000)}});  // node 7 believes the liar, too
  invent(200);
  keeps(7);
  f.membership.check_invariants();

  // Invented nodes do not make the cluster a large one. A neighbour in a large cluster can still say that it is large.
  MembershipMessage message{.incarnation = 1, .partial = true, .body = News{}};
  f.membership.receive(record(1).node, message, f.now_us, f.out);
  CHECK_FALSE(f.membership.partial());
  message.body = NeighbourReply{record(1), true};
  f.membership.receive(record(1).node, message, f.now_us, f.out);
  CHECK(f.membership.partial());
  keeps(7);
}

TEST_CASE("With partial views those that were met stay in reserve, whomever a member invents") {
  Fixture f({.full_view_limit = 8, .active_view = 4, .passive_view = 16});
  f.add(9);
  REQUIRE(f.membership.partial());
  for (std::size_t i = 0; i < 400; ++i)
    f.receive(1, ShuffleReply{{record(1'000 + i), record(2'000 + i)}});
  const auto in_reserve = [&](std::size_t number) {
    return std::ranges::any_of(f.membership.passive_view(),
                               [&](const auto& reserve) { return reserve.record.node == record(number).node; });
  };
  CHECK(in_reserve(1'399));
  for (std::size_t i = 1; i <= 9; ++i)
    CHECK((in_reserve(i) || f.membership.find(record(i).node) != nullptr));
}

TEST_CASE("Also one that is back may be one too many") {
  Fixture f({.full_view_limit = 3, .active_view = 2});
  f.add(3);
  f.now_us = 5 * us_per_s;
  f.hear(2, Claim::dead, 1, 1);
  f.receive(4, Join{record(4)});
  REQUIRE(f.membership.members().size() == 3);
  f.receive(1, News{}, 2);
  CHECK(f.membership.partial());
  f.membership.check_invariants();
}

TEST_CASE("A neighbour that is never heard itself is one no longer, nor is it dead") {
  Fixture f({.full_view_limit = 2, .active_view = 2});
  for (std::size_t i = 1; i <= 4; ++i)
    f.receive(i, Join{record(i, 1, i == 4)});  // node 4 can only dial out: it is reached only by a link to it
  REQUIRE(f.membership.partial());
  REQUIRE(f.membership.find(record(4).node) != nullptr);
  f.clear();
  const bool speaks = GENERATE(false, true);
  int answered = 0;
  std::uint32_t last = 0;
  for (int tick = 0; tick < 2000 && answered < 2 * max_unheard; ++tick) {
    f.now_us += f.options_.tick_us;
    f.membership.tick(f.now_us, f.out);
    const std::vector<Membership::Send> sent = std::move(f.out.send);
    f.out.send.clear();
    for (const Membership::Send& send : sent) {
      const std::size_t to = send.to.bytes[0];
      if (const auto* ping = std::get_if<Ping>(&send.message.body); ping != nullptr && to != 4) {
        f.receive(to, Ack{ping->sequence});
      }
      const auto* request = std::get_if<PingRequest>(&send.message.body);
      if (request == nullptr || request->target.node != record(4).node) continue;
      f.receive(to, Ack{request->sequence});
      if (last == request->sequence) continue;  // each helper answers
      last = request->sequence;
      ++answered;
      if (speaks && answered % 2 == 0) f.receive(4, News{});
    }
  }
  CHECK(answered == (speaks ? 2 * max_unheard : max_unheard));
  CHECK((f.membership.find(record(4).node) != nullptr) == speaks);
  CHECK(f.count(Change::died) == 0);
  CHECK(f.count(Change::suspected) == 0);
}

TEST_CASE("With partial views a suspected neighbour that cannot be reached is kept until that is decided") {
  Fixture f({.full_view_limit = 3, .active_view = 3}, true);
  for (std::size_t i = 1; i <= 2; ++i)
    f.receive(i, Sync{.sender = record(i), .entries = {{record(5, 1, true), Claim::alive}}});
  f.hear(1, Claim::suspected, 5, 1);
  f.receive(3, Sync{.sender = record(3)});
  REQUIRE(f.membership.partial());
  f.run(f.options_.tick_us, true);
  CHECK(f.membership.find(record(5).node) != nullptr);
  f.receive(1, News{}, 1, {{.claim = Claim::alive, .subject = record(5, 2, true)}});
  f.run(f.options_.tick_us, true);
  CHECK(f.membership.find(record(5).node) == nullptr);
  CHECK(f.count(Change::died) == 0);
}

TEST_CASE("With partial views two neighbours that can only dial out are none any longer") {
  Fixture f({.full_view_limit = 3, .active_view = 3});
  for (std::size_t i = 1; i <= 5; ++i)
    f.receive(i, Join{record(i, 1, i == 5)});
  REQUIRE(f.membership.partial());
  REQUIRE(f.membership.find(record(5).node) != nullptr);
  f.membership.relocate({});
  f.run(f.options_.tick_us, true);
  CHECK(f.membership.find(record(5).node) == nullptr);
  CHECK(f.membership.members().size() > 1);
}

TEST_CASE("With partial views those who were given up, and those who gave up, find each other again") {
  Fixture f({.full_view_limit = 2, .active_view = 2});
  for (std::size_t i = 1; i <= 3; ++i)
    f.receive(i, Join{record(i)});
  REQUIRE(f.membership.partial());
  f.run(2 * us_per_s, true);
  f.clear();

  SECTION("who refutes its death tells its neighbours whom it takes for such") {
    f.hear(1, Claim::dead, 0, 1);
    f.run(2 * us_per_s, true);
    const auto told = f.sent<Sync>();
    CHECK(told.size() >= f.membership.members().size());
    for (const Membership::Member& member : f.membership.members())
      CHECK(std::ranges::count(told, member.record.node, &Membership::Send::to) >= 1);
  }
  SECTION("who is told so, and is not, asks to be, if it has room") {
    MembershipMessage message;
    message.incarnation = 1;
    message.partial = true;
    message.body = Sync{.sender = record(9)};
    f.membership.receive(record(9).node, message, f.now_us, f.out);
    REQUIRE(f.sent<NeighbourRequest>().size() == 1);
    CHECK(f.sent<NeighbourRequest>()[0].to == record(9).node);
  }
  SECTION("who hears from others that a lost neighbour is back asks it") {
    const NodeId lost = f.membership.members().front().record.node;
    while (f.membership.find(lost) != nullptr)
      f.run(us_per_s, false);
    f.clear();
    f.hear(9, Claim::alive, lost.bytes[0], 7);
    const auto asked = f.sent<NeighbourRequest>();
    CHECK(std::ranges::count(asked, lost, &Membership::Send::to) == 1);
  }
}

TEST_CASE("Whoever is held dead and said to be alive is asked, and alive again with a larger incarnation") {
  MembershipOptions options;
  options.full_view_limit = 4;
  Fixture f(options);
  f.add(6);
  REQUIRE(f.membership.partial());
  f.now_us = 10 * us_per_s;
  f.membership.tick(f.now_us, f.out);
  f.clear();
  f.hear(1, Claim::dead, 200, 3);
  CHECK(f.happened(Change::died, 200));
  f.receive(1, ShuffleReply{{record(200, 3), record(200, 3)}});
  const auto pings = f.sent<Ping>();
  REQUIRE(pings.size() == 1);
  CHECK(pings[0].to == record(200).node);
  REQUIRE_FALSE(pings[0].message.rumours.empty());
  CHECK(pings[0].message.rumours[0].claim == Claim::dead);
  f.receive(1, ShuffleReply{{record(200, 4)}});
  CHECK(f.happened(Change::alive_again, 200));
  CHECK_FALSE(f.membership.considers_gone(record(200).node));
}

TEST_CASE("With partial views, too, neighbours tell of the return of a node that can only dial out") {
  Fixture f({.full_view_limit = 2, .active_view = 2});
  for (std::size_t i = 1; i <= 4; ++i)
    f.receive(i, Join{record(i)});
  REQUIRE(f.membership.partial());
  REQUIRE_FALSE(f.membership.members().empty());
  const std::size_t neighbour = f.membership.members().front().record.node.bytes[0];
  f.hear(neighbour, Claim::dead, 9, 5);
  REQUIRE(f.membership.considers_gone(record(9).node));
  f.receive(neighbour, Sync{.sender = record(neighbour), .entries = {{record(9, 5, true)}}});
  CHECK(f.membership.considers_gone(record(9).node));
  CHECK_FALSE(f.happened(Change::alive_again, 9));
  f.receive(neighbour, Sync{.sender = record(neighbour), .entries = {{record(9, 6, true)}}});
  CHECK_FALSE(f.membership.considers_gone(record(9).node));
  CHECK(f.happened(Change::alive_again, 9));
  CHECK(std::ranges::none_of(f.membership.passive_view(),
                             [](const auto& reserve) { return reserve.record.node == record(9).node; }));
}

TEST_CASE("Messages out of bounds are counted and do nothing") {
  Fixture f;
  f.add(2);
  f.receive(0, Ping{});
  CHECK(f.out.send.empty());
  f.receive(1, Join{record(0, 5)});
  f.receive(1, Join{record(2, 5)});  // in the name of another node
  f.receive(1, Sync{.sender = record(2, 5)});
  f.receive(1, ShuffleReply{std::vector<MemberRecord>(max_shuffle_records + 1, record(3))});
  CHECK(f.membership.counters().malformed == 4);
  CHECK(f.membership.find(record(2).node)->record.incarnation == 1);
}

MembershipBody any_body(Random& random) {
  const auto any = [&] { return record(random.below(300), random.next() >> random.below(64), random.below(4) == 0); };
  std::vector<MemberRecord> records;
  std::vector<SyncEntry> entries;
  for (std::uint64_t i = random.below(max_shuffle_records + 2); i > 0; --i)
    records.push_back(any());
  for (std::uint64_t i = random.below(max_sync_entries + 10); i > 0; --i)
    entries.push_back({any(), static_cast<Claim>(random.below(3))});
  const auto sequence = static_cast<std::uint32_t>(random.next());
  const auto hops = static_cast<std::uint8_t>(random.below(max_walk_hops + 2));
  switch (random.below(14)) {
    case 0:
      return Ping{sequence, random.below(2) == 0};
    case 1:
      return PingRequest{sequence, sequence, any()};
    case 2:
      return Ack{sequence};
    case 3:
      return Nack{sequence};
    case 4:
      return Sync{any(), random.below(2) == 0, entries};
    case 5:
      return Join{any()};
    case 6:
      return ForwardJoin{any(), hops};
    case 7:
      return NeighbourRequest{any(), random.below(2) == 0};
    case 8:
      return NeighbourReply{any(), random.below(2) == 0};
    case 9:
      return Disconnect{};
    case 10:
      return Shuffle{any(), hops, records};
    case 11:
      return ShuffleReply{records};
    case 12:
      return Leave{};
    default:
      return News{};
  }
}

TEST_CASE("Whatever admitted members send, every table stays within its bound") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Random random(seed);
    MembershipOptions options;
    options.full_view_limit = seed % 2 == 0 ? 64 : 16;
    Fixture f(options);
    for (int i = 0; i < 4'000; ++i) {
      MembershipMessage message;
      message.incarnation = random.next() >> random.below(64);
      message.partial = random.below(2) == 0;
      message.body = any_body(random);
      for (std::uint64_t n = random.below(max_message_rumours + 2); n > 0; --n) {
        message.rumours.push_back({.claim = static_cast<Claim>(random.below(5)),
                                   .spread = random.below(2) == 0,
                                   .hops = static_cast<std::uint8_t>(random.below(max_rumour_hops + 2)),
                                   .subject = record(random.below(900), random.next() >> random.below(64)),
                                   .accuser = record(random.below(300)).node});
      }
      // Half of the messages speak for their sender, as correct ones do.
      NodeId from = record(1 + random.below(299)).node;
      if (auto* join = std::get_if<Join>(&message.body); join != nullptr && random.below(2) == 0) {
        from = join->sender.node;
      }
      if (auto* request = std::get_if<NeighbourRequest>(&message.body)) from = request->sender.node;
      if (auto* reply = std::get_if<NeighbourReply>(&message.body)) from = reply->sender.node;
      f.clear();
      f.membership.receive(from, message, f.now_us, f.out);
      REQUIRE(f.out.send.size() <= 2 * max_message_rumours * max_active_view + max_sync_entries);
      if (random.below(8) == 0) f.run(f.options_.tick_us, random.below(2) == 0);
      const std::size_t members =
          f.membership.partial() ? std::max(most_neighbours, options.full_view_limit + 1) : options.full_view_limit;
      REQUIRE(f.membership.members().size() <= members);
      REQUIRE(f.membership.passive_view().size() <= options.passive_view);
      REQUIRE(f.membership.heard().size() <= max_heard);
      REQUIRE(f.membership.queued_rumours() <= max_queued_rumours);
      REQUIRE(std::ranges::is_sorted(f.membership.view()));
    }
    CHECK(f.membership.counters().malformed > 0);
  }
}

}  // namespace
}  // namespace gossamer::gossip
