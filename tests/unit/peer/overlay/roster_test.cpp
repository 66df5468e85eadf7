// Tests how the roster carries out the decisions of membership: errands, and addresses that have another meaning on
// another machine.

#include "peer/overlay/roster.hpp"

#include <map>
#include <set>

#include "catch.hpp"

using namespace gossamer;
using peer::Roster;

namespace {

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes.fill(number);
  return id;
}
std::string address(std::uint8_t number) {
  return "tcp://10.0.0." + std::to_string(number) + ":7946";
}
MemberRecord record(std::uint8_t number) {
  return {node(number), 1, false, address(number)};
}

struct FakeHost : Roster::Host {
  bool send_membership(const NodeId& to, const MembershipMessage& message) override {
    if (!links.contains(to)) return false;
    sent.emplace_back(to, message);
    return true;
  }
  [[nodiscard]] std::optional<NodeId> node_at(const std::string& where) const override {
    const auto found = found_at.find(where);
    return found == found_at.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] std::string seen_address(const NodeId&) const override { return seen; }
  [[nodiscard]] bool is_denied(const NodeId& who) const override { return who == denied; }
  template <class Body>
  [[nodiscard]] std::size_t sent_to(const NodeId& to) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        sent, [&](const auto& item) { return item.first == to && std::holds_alternative<Body>(item.second.body); }));
  }

  std::set<NodeId> links;
  std::map<std::string, NodeId> found_at;
  std::string seen;
  NodeId denied;
  std::vector<std::pair<NodeId, MembershipMessage>> sent;
};

MembershipMessage saying(MembershipBody body) {
  MembershipMessage message;
  message.incarnation = 1;
  message.body = std::move(body);
  return message;
}

struct Fixture {
  FakeHost host;
  TimeUs now = us_per_s;
  Roster roster{gossip::MembershipOptions::lan(), record(1), gossip::Random(3), now, host};

  void hears(std::uint8_t from, MembershipBody body, const std::string& seen_host = "10.0.0.99") {
    roster.receive(node(from), saying(std::move(body)), seen_host, now);
  }
  void pass(TimeUs duration) {
    for (const TimeUs end = now + duration; now < end; now += 100 * us_per_ms)
      roster.tick(now);
  }
};

}  // namespace

TEST_CASE("an introduction waits for the link to the address") {
  Fixture f;
  f.roster.set_contacts({address(2)}, f.now);
  CHECK(f.host.sent.empty());
  CHECK(f.roster.errands() == 1);
  f.host.links.insert(node(3));
  f.roster.link_up(node(3), 1, address(3), f.now);  // another node, another address
  CHECK(f.host.sent.empty());
  f.host.links.insert(node(2));
  f.roster.link_up(node(2), 1, address(2), f.now);
  CHECK(f.host.sent_to<Join>(node(2)) == 1);
  CHECK(f.roster.errands() == 0);
}

TEST_CASE("what nobody can be told is given up after a while, and errands are bounded") {
  Fixture f;
  std::vector<std::string> many;
  for (std::uint8_t i = 2; i < 66; ++i)
    many.push_back(address(i));
  f.roster.set_contacts(many, f.now);
  CHECK(f.roster.errands() > 0);
  for (int round = 0; round < 100; ++round) {
    f.pass(us_per_s);
    CHECK(f.roster.errands() <= peer::max_errands);
  }
  f.roster.set_contacts({}, f.now);
  f.pass(peer::errand_us + us_per_s);
  CHECK(f.roster.errands() == 0);
}

TEST_CASE("members are wanted until they have left, by their own word") {
  Fixture f;
  f.host.links.insert(node(2));
  f.hears(2, Join{record(2)});
  CHECK(f.roster.keeps(node(2)));
  CHECK(f.host.sent_to<Sync>(node(2)) == 1);
  REQUIRE(f.roster.wanted().size() == 1);
  CHECK(f.roster.wanted()[0].address == address(2));
  const auto joined = f.roster.take_changes();
  REQUIRE(joined.size() == 1);
  CHECK(joined[0].node == node(2));
  CHECK(joined[0].change == Roster::Change::joined);
  CHECK(f.roster.take_changes().empty());
  f.hears(2, Leave{});
  CHECK_FALSE(f.roster.keeps(node(2)));
  const auto left = f.roster.take_changes();
  REQUIRE(left.size() == 1);
  CHECK(left[0].change == Roster::Change::left);
  CHECK(left[0].own_word);
  CHECK(f.roster.wanted().empty());
}

TEST_CASE("whoever is there for another reason is greeted, unless it is a member") {
  Fixture f;
  f.host.links = {node(2), node(3)};
  f.roster.greet(node(2), f.now);
  CHECK(f.host.sent_to<Join>(node(2)) == 1);
  f.hears(2, Sync{record(2), false, {}});
  f.roster.greet(node(2), f.now);
  CHECK(f.host.sent.size() == 1);
  f.roster.greet(node(3), f.now);
  CHECK(f.host.sent_to<Sync>(node(3)) == 1);
}

TEST_CASE("a denied node is nobody's member here") {
  Fixture f;
  f.host.denied = node(4);
  f.host.links.insert(node(2));
  f.hears(2, Sync{record(2), false, {{record(3), Claim::alive}, {record(4), Claim::alive}}});
  CHECK(f.roster.membership().find(node(3)) != nullptr);
  CHECK(f.roster.membership().find(node(4)) == nullptr);
  f.hears(4, Join{record(4)});
  CHECK(f.roster.membership().find(node(4)) == nullptr);
}

TEST_CASE("addresses are made fit for this machine") {
  const std::string remote = "10.0.0.7";
  const std::string local = "127.0.0.1";
  struct Row {
    std::string address;
    bool own;
    std::string seen_host;
    std::string known;
    std::string expected;  // "-": the record is useless; "": the node only dials
  };
  const Row rows[] = {
      {"tcp://10.0.0.7:1", true, remote, "", "tcp://10.0.0.7:1"},
      {"tcp://a.example:1", true, remote, "", "tcp://a.example:1"},
      {"tcp://0.0.0.0:1", true, remote, "", "tcp://10.0.0.7:1"},
      {"tcp://0.0.0.0:1", true, local, "", "tcp://127.0.0.1:1"},
      {"tcp://[::]:1", true, "fe80::1", "", "tcp://[fe80::1]:1"},
      {"tcp://127.0.0.1:1", true, local, "", "tcp://127.0.0.1:1"},
      {"tcp://127.0.0.1:1", true, remote, "", ""},
      {"tcp://127.0.0.1:1", false, local, "", "tcp://127.0.0.1:1"},
      {"tcp://127.0.0.1:1", false, remote, "", "-"},
      {"tcp://127.0.0.1:1", false, remote, "tcp://10.0.0.8:1", "tcp://10.0.0.8:1"},
      {"tcp://0.0.0.0:1", false, remote, "", "-"},
      {"nonsense", true, remote, "", "-"},
      {"tcp://h:0", true, remote, "", "-"},
      {"", true, remote, "", ""},
  };
  for (const Row& row : rows) {
    INFO(row.address << " own " << row.own << " seen at " << row.seen_host);
    const MemberRecord before{node(7), 5, row.address.empty(), row.address};
    const auto after = peer::localised(before, row.own ? node(7) : node(8), row.seen_host, row.known);
    REQUIRE(after.has_value() == (row.expected != "-"));
    if (!after) continue;
    CHECK(after->address == row.expected);
    CHECK(after->dial_only == row.expected.empty());
    CHECK(after->incarnation == 5);
    CHECK(valid(*after));
  }
}

TEST_CASE("what is said of this node is heard whatever address it is given") {
  Fixture f;
  f.host.links.insert(node(2));
  f.hears(2, Join{record(2)});
  MembershipMessage message = saying(News{});
  MemberRecord self = record(1);
  self.incarnation = 9;
  self.address = "tcp://127.0.0.1:1";
  message.rumours.push_back({.claim = Claim::alive, .subject = self});
  f.roster.receive(node(2), message, "10.0.0.99", f.now);
  CHECK(f.roster.membership().self().incarnation == 10);
}

TEST_CASE("a node whose host changes while it runs is known by where it is seen") {
  Fixture f;
  f.host.links.insert(node(2));
  f.hears(2, Join{record(2)});
  const auto known = [&] { return f.roster.membership().find(node(2))->record.address; };
  f.roster.seen_at(node(2), "tcp://10.0.0.77:7946");
  CHECK(known() == "tcp://10.0.0.77:7946");
  f.roster.seen_at(node(2), "tcp://127.0.0.1:7946");  // an address that is of use on this machine only
  CHECK(known() == "tcp://10.0.0.77:7946");
  f.roster.seen_at(node(2), "");
  CHECK(known() == "tcp://10.0.0.77:7946");
  f.roster.seen_at(node(3), "tcp://10.0.0.78:7946");  // not a member
  CHECK(f.roster.membership().find(node(3)) == nullptr);
}
