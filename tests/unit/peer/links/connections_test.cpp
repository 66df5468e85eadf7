// Tests which connections to the listening port are closed.

#include "peer/links/connections.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "catch.hpp"
#include "gossip/random.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using Why = Connections::Closing::Why;

TEST_CASE("one stranger too many: one goes of the host that has the most") {
  Connections connections(4, 100);
  CHECK_FALSE(connections.opened(10, {"a", 1}, 0));
  CHECK_FALSE(connections.opened(11, {"b", 1}, 0));
  CHECK_FALSE(connections.opened(9, {"b", 2}, 0));
  CHECK_FALSE(connections.opened(12, {"c", 1}, 0));
  const auto flood = connections.opened(13, {"b", 3}, 0);
  REQUIRE(flood);
  CHECK((flood->descriptor == 11 && flood->end == Connections::End{"b", 1} && flood->why == Why::too_many));
  // A newcomer from another host does not cost hosts with one connection their place.
  const auto newcomer = connections.opened(14, {"d", 1}, 0);
  REQUIRE(newcomer);
  CHECK(newcomer->descriptor == 9);
  // All hosts have one connection, so any of them is closed, but for the newcomer.
  const auto any = connections.opened(15, {"e", 1}, 0);
  REQUIRE(any);
  CHECK(any->descriptor != 15);
  CHECK(connections.strangers() == 4);
}

TEST_CASE("of hosts with equally many strangers, one that has got least far gives way, and which of them is chance") {
  constexpr int most = 16;
  std::map<int, TcpBytes> bytes;
  const auto bytes_on = [&](int descriptor) { return bytes[descriptor]; };
  std::set<int> closed;
  for (int round = 0; round < 4; ++round) {
    Connections connections(most, 100);
    const auto come = [&](int descriptor, TcpBytes traffic) {
      bytes[descriptor] = traffic;
      return connections.opened(descriptor, {"host " + std::to_string(descriptor), 1}, 0);
    };
    CHECK_FALSE(come(1, {.received = 300, .sent = 234}));  // has been welcomed
    CHECK_FALSE(come(2, {.received = 64, .sent = 64}));    // has greeted
    for (int descriptor = 3; descriptor <= most; ++descriptor)
      CHECK_FALSE(come(descriptor, {.received = 0, .sent = 64}));
    CHECK(connections.take_greedy(bytes_on).empty());
    // Silent ones from many addresses drive out each other only.
    for (int descriptor = 100; descriptor < 100 + 3 * most; ++descriptor) {
      const auto closing = come(descriptor, {.received = 0, .sent = 64});
      REQUIRE(closing);
      CHECK((closing->descriptor > 2 && closing->descriptor != descriptor));
      closed.insert(closing->descriptor);
      (void)connections.take_greedy(bytes_on);
    }
  }
  CHECK(closed.size() > most);
}

TEST_CASE("who comes again and again from many addresses drives out himself, and a slow handshake gets through") {
  constexpr int most = 64;
  constexpr int addresses = 250;
  constexpr TimeUs pause = us_per_s / 8000;
  TimeUs now = 0;
  int descriptor = 100;
  Connections connections(most, stranger_patience_us);
  const auto come_again = [&](int count) {
    bool keeps = true;
    for (int n = 0; n < count; ++n, now += pause) {
      const auto closing =
          connections.opened(++descriptor, {"crowd " + std::to_string(descriptor % addresses), 1}, now);
      keeps = keeps && !(closing && closing->descriptor == 1);
    }
    return keeps;
  };
  (void)come_again(4 * addresses * most);
  // Nobody knows yet that the newcomer is silent because its line is slow: 300 ms, in which 2,400 others come.
  REQUIRE(connections.opened(1, {"newcomer", 1}, now));
  CHECK(connections.take_greedy([](int which) { return TcpBytes{.received = which == 1 ? 0u : 300u, .sent = 234}; })
            .empty());
  CHECK(come_again(2400));
  connections.admit(1, {"newcomer", 1}, "name");
  // What one did long ago is forgotten: then it is as good as any other.
  now += 60 * us_per_s;
  (void)connections.take_late(now);
  std::set<std::string> closed;
  for (int n = 0; n < 2 * most; ++n) {
    const std::string host = n % 2 == 0 ? "crowd " + std::to_string(n) : "other " + std::to_string(n);
    const auto closing = connections.opened(++descriptor, {host, 1}, now);
    if (closing) closed.insert(closing->end.host.substr(0, 5));
  }
  CHECK(closed == std::set<std::string>{"crowd", "other"});
}

TEST_CASE("the addresses of one IPv6 network are one host") {
  Connections connections(3, 100);
  CHECK_FALSE(connections.opened(3, {"fd77:1:0:1::2", 1}, 0));
  CHECK_FALSE(connections.opened(4, {"fd77:1:0:1::3", 1}, 0));
  CHECK_FALSE(connections.opened(5, {"fd77:1:0:2::2", 1}, 0));
  const auto closing = connections.opened(6, {"10.0.0.1", 1}, 0);
  REQUIRE(closing);
  CHECK(closing->descriptor == 3);
  // IPv4 in IPv6 is as it is.
  Connections mapped(2, 100);
  CHECK_FALSE(mapped.opened(3, {"::ffff:10.0.0.1", 1}, 0));
  CHECK_FALSE(mapped.opened(4, {"::ffff:10.0.0.2", 1}, 0));
  CHECK_FALSE(mapped.opened(5, {"::ffff:10.0.0.1", 2}, 0)->descriptor == 4);
}

TEST_CASE("a stranger that is admitted has all the time, until it is dismissed") {
  Connections connections(2, 100);
  CHECK_FALSE(connections.opened(3, {"a", 1}, 0));
  CHECK_FALSE(connections.opened(4, {"a", 2}, 50));
  connections.admit(3, {"a", 1}, "name");
  CHECK(connections.strangers() == 1);
  CHECK(connections.take_late(149).empty());
  const auto late = connections.take_late(150);
  REQUIRE(late.size() == 1);
  CHECK((late[0].descriptor == 4 && late[0].why == Why::late));
  CHECK(connections.take_late(1000).empty());
  connections.dismiss("name", 1000);
  connections.dismiss("name", 1050);
  connections.dismiss({}, 1050);
  CHECK(connections.take_late(1099).empty());
  CHECK(connections.take_late(1100).size() == 1);
}

TEST_CASE("the end of an admitted connection is told apart, and a descriptor may come again") {
  Connections connections(2, 100);
  CHECK_FALSE(connections.opened(3, {"a", 1}, 0));
  connections.admit(3, {"a", 1}, "name");
  CHECK(connections.closed(3)->admitted);
  CHECK_FALSE(connections.closed(3));
  CHECK_FALSE(connections.opened(3, {"a", 2}, 10));
  CHECK(connections.strangers() == 1);
  const auto stranger = connections.closed(3);
  REQUIRE(stranger);
  CHECK((stranger->end == Connections::End{"a", 2} && !stranger->admitted && !stranger->spoke));
  // The end of the first connection is reported late. The connection that now has its number counts.
  CHECK_FALSE(connections.opened(5, {"a", 3}, 20));
  CHECK_FALSE(connections.opened(5, {"b", 1}, 30));
  CHECK(connections.strangers() == 1);
  CHECK(connections.take_late(130).at(0).end.host == "b");
}

TEST_CASE("it is known whether a message has come, whichever is told first") {
  Connections connections(2, 100);
  CHECK_FALSE(connections.opened(3, {"a", 1}, 0));
  CHECK_FALSE(connections.has_spoken(3));
  connections.spoke(3, {"a", 1}, 1);
  CHECK(connections.has_spoken(3));
  CHECK(connections.closed(3)->spoke);
  connections.spoke(3, {"a", 2}, 5);
  CHECK_FALSE(connections.opened(3, {"a", 2}, 6));
  CHECK(connections.has_spoken(3));
  // The descriptor is another connection's by now.
  CHECK_FALSE(connections.opened(3, {"b", 1}, 7));
  CHECK_FALSE(connections.has_spoken(3));
  connections.spoke(3, {"c", 1}, 8);
  CHECK(connections.strangers() == 1);
  CHECK(connections.closed(3)->end.host == "c");
  // A stranger that has spoken has no more time than others.
  connections.spoke(4, {"a", 3}, 10);
  CHECK(connections.take_late(109).empty());
  CHECK(connections.take_late(110).size() == 1);
}

TEST_CASE("a connection may be admitted before it is told of") {
  Connections connections(2, 100);
  connections.admit(3, {"a", 1}, "name");
  CHECK_FALSE(connections.opened(3, {"a", 1}, 0));
  CHECK(connections.strangers() == 0);
  CHECK(connections.take_late(1000).empty());
  CHECK(connections.closed(3)->admitted);
  // Another connection has this descriptor by now, and the end of the first was not reported.
  connections.admit(4, {"a", 2}, "another");
  CHECK_FALSE(connections.opened(4, {"b", 1}, 1000));
  CHECK(connections.strangers() == 1);
  connections.dismiss("another", 1050);
  CHECK(connections.take_late(1100).size() == 1);
}

TEST_CASE("a stranger that sends too much is closed, and what came before it was dismissed does not count") {
  Connections connections(8, 100);
  CHECK_FALSE(connections.opened(3, {"a", 1}, 0));
  CHECK_FALSE(connections.opened(4, {"a", 2}, 0));
  connections.admit(4, {"a", 2}, "name");
  std::map<int, std::uint64_t> bytes{{3, max_stranger_bytes}, {4, 10 * max_stranger_bytes}};
  const auto received = [&](int descriptor) { return TcpBytes{.received = bytes[descriptor]}; };
  CHECK(connections.take_greedy(received).empty());
  bytes[3] = max_stranger_bytes + 1;
  const auto greedy = connections.take_greedy(received);
  REQUIRE(greedy.size() == 1);
  CHECK((greedy[0].descriptor == 3 && greedy[0].why == Why::too_much));
  CHECK(connections.take_greedy(received).empty());
  connections.dismiss("name", 50);
  CHECK(connections.take_greedy(received).empty());
  bytes[4] += max_stranger_bytes;
  CHECK(connections.take_greedy(received).empty());
  bytes[4] += 1;
  CHECK(connections.take_greedy(received).size() == 1);
}

TEST_CASE("whatever comes and goes, the strangers are counted, and who has the most of them gives way") {
  constexpr std::size_t most = 6;
  gossip::Random random(3);
  Connections connections(most, 50);
  std::map<int, Connections::End> strangers;
  std::map<std::string, Connections::End> admitted;  // by their names
  int ports = 0;
  const auto of_host = [&](const std::string& host) {
    return std::ranges::count_if(strangers, [&](const auto& one) { return one.second.host == host; });
  };
  for (TimeUs now = 0; now < 20'000; ++now) {
    const int descriptor = static_cast<int>(random.below(12));
    const std::string name = "name " + std::to_string(descriptor);
    const Connections::End end{"host " + std::to_string(random.below(4)), ++ports};
    switch (random.below(6)) {
      case 0:
      case 1: {
        strangers[descriptor] = end;
        admitted.erase(name);
        const auto closing = connections.opened(descriptor, end, now);
        REQUIRE(closing.has_value() == (strangers.size() > most));
        if (!closing) break;
        CHECK(strangers.at(closing->descriptor) == closing->end);
        for (const auto& [other, its_end] : strangers)
          CHECK(of_host(its_end.host) <= of_host(closing->end.host));
        strangers.erase(closing->descriptor);
        break;
      }
      case 2:
        CHECK(connections.closed(descriptor).has_value() ==
              (strangers.contains(descriptor) || admitted.contains(name)));
        strangers.erase(descriptor);
        admitted.erase(name);
        break;
      case 3:
        if (!strangers.contains(descriptor)) break;
        admitted[name] = strangers.at(descriptor);
        connections.admit(descriptor, admitted.at(name), name);
        strangers.erase(descriptor);
        break;
      case 4:
        if (strangers.size() == most || !admitted.contains(name)) break;
        connections.dismiss(name, now);
        strangers[descriptor] = admitted.at(name);
        admitted.erase(name);
        break;
      default:
        for (const Connections::Closing& late : connections.take_late(now))
          CHECK(strangers.erase(late.descriptor) == 1);
    }
    REQUIRE(connections.strangers() == strangers.size());
  }
}
