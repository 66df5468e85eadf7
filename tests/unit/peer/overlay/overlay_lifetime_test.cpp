// Tests how links end and come back: crash, goodbye, restart, pause, silence.

#include "tests/unit/peer/relay.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

TEST_CASE("the crash of either end is noticed at once, and death after its time") {
  const bool dialler_dies = GENERATE(true, false);
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.link_timeout_ms = 60'000;  // so long that silence is not the cause
  auto a = Node::started(loop, keys, options);
  options.peers = {a->overlay->address()};
  auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  auto& survivor = dialler_dies ? a : b;
  auto& victim = dialler_dies ? b : a;
  victim->overlay.reset();
  run_until(loop, [&] { return survivor->count("down", *victim) == 1; });
  CHECK(survivor->count("dead", *victim) == 0);
  CHECK(survivor->overlay->send(victim->id, JobQuery{}) == SendResult::no_link);
  run_until(loop, [&] { return survivor->count("dead", *victim) == 1; });
  CHECK(survivor->link(*victim).dead);
}

TEST_CASE("a goodbye is death at once") {
  const bool dialler_leaves = GENERATE(true, false);
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.membership.suspicion_mult = 10'000;  // so long that silence is not the cause
  auto a = Node::started(loop, keys, options);
  options.peers = {a->overlay->address()};
  auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  auto& survivor = dialler_leaves ? a : b;
  auto& leaver = dialler_leaves ? b : a;
  leaver->overlay->stop();
  const std::size_t events = leaver->events.size();
  leaver->overlay.reset();
  run_until(loop, [&] { return survivor->count("dead", *leaver) == 1; });
  CHECK(survivor->last_reason.starts_with("goodbye"));
  CHECK(leaver->events.size() == events);
}

TEST_CASE("what was sent before stop arrives") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto a = Node::started(loop, keys);
  auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  for (int i = 0; i < 50; ++i)
    CHECK(b->overlay->send(a->id, ExchangeAck{static_cast<std::uint64_t>(i)}) == SendResult::sent);
  b->overlay->stop();
  b->overlay.reset();
  run_until(loop, [&] { return a->count("dead", *b) == 1; });
  CHECK(a->messages.size() == 50);
}

TEST_CASE("a node that comes back with a new incarnation is redialled; its old life is dead") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.membership.suspicion_mult = 10'000;
  const HeldPort port(loop);
  options.listen = port.address();
  auto a = Node::started(loop, keys, options);
  auto b = Node::started(loop, keys, with_peers({port.address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });

  const Identity identity = a->identity;
  auto old_life = std::move(a);
  old_life->overlay.reset();
  run_until(loop, [&] { return b->count("down", *old_life) == 1; });
  options.incarnation = 2;
  a = Node::started(loop, keys, options, identity);
  run_until(loop, [&] { return b->linked(*a) && a->linked(*b); });
  CHECK(b->count("dead", *a) == 1);
  CHECK(b->count("up", *a) == 2);
  // Death is told before the new life begins.
  const std::vector<std::string> order{"up " + a->id.full(), "down " + a->id.full(), "dead " + a->id.full(),
                                       "up " + a->id.full()};
  CHECK(b->events == order);
}

TEST_CASE("a restart that was faster than the notice of the crash") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto a = Node::started(loop, keys);
  auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  // The same node, started later, dials again while the old link still looks alive to a.
  OverlaySettings again = with_peers({a->overlay->address()});
  again.incarnation = 2;
  auto c = Node::started(loop, keys, again, b->identity);
  run_until(loop, [&] { return a->count("dead", *b) == 1 && a->linked(*c); });
  CHECK(a->logged("restarted") == 1);
  b->overlay.reset();
  const auto before = a->link(*c).traffic.messages_received;
  run_until(loop, [&] { return a->link(*c).traffic.messages_received > before + 10; });
  CHECK(a->linked(*c));
}

TEST_CASE("silence ends a link, and it comes back with the wire") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.link_timeout_ms = 300;
  options.attempt_timeout_ms = 300;
  Relay relay(loop);
  const auto [a, b] = started_apart(loop, keys, options, relay);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  relay.silent = true;
  run_until(loop, [&] { return a->count("down", *b) >= 1; });
  run_until(loop, [&] { return a->count("dead", *b) == 1 && b->count("dead", *a) == 1; });
  // The node that noticed first has closed the connection. The other may see that before it notices the silence.
  CHECK((a->last_reason.starts_with("silent") || b->last_reason.starts_with("silent")));
  // The link's status has the newest reason why there is none.
  run_until(loop,
            [&] { return b->link(*a).last_error.find("says nothing that a node would say") != std::string::npos; });
  const auto failed = b->overlay->counters().attempts_failed;
  run_until(loop, [&] { return b->overlay->counters().attempts_failed >= failed + 4; });
  CHECK(b->logged("cluster key") == 0);
  relay.silent = false;
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(a->count("up", *b) >= 2);
}

TEST_CASE("a connection that somebody on the way breaks is told as that, and not as another key") {
  const bool control = GENERATE(true, false);
  asio::io_context loop;
  OverlaySettings options = quick_options();
  options.bulk = BulkProtection::curve;
  options.link_timeout_ms = 300;  // bulk has a heartbeat as often
  options.backoff_least_ms = 3000;
  options.backoff_most_ms = 3000;
  Relay relay(loop);
  bool tampers = false;
  relay.tamper = [&](int connection, bool to_listener, std::span<char> bytes) {
    if (tampers && !to_listener && connection == (control ? 0 : 1)) bytes.back() ^= 1;
    return Relay::Fate::passes;
  };
  const auto [a, b] = started_apart(loop, new_keys(), options, relay);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  tampers = true;
  run_until(loop, [&] { return b->count("down", *a) == 1; });
  CHECK(b->last_reason.find("something on the way changes, drops or repeats bytes") != std::string::npos);
  CHECK(b->logged("cluster key") == 0);
}

TEST_CASE("a link that broke at the listener is not held against the next stranger") {
  asio::io_context loop;
  OverlaySettings options = quick_options();
  options.bulk = BulkProtection::curve;
  options.backoff_least_ms = options.backoff_most_ms = 60'000;
  Relay relay(loop);
  bool tampers = false;
  relay.tamper = [&](int connection, bool to_listener, std::span<char> bytes) {
    if (tampers && to_listener && connection == 0) bytes.back() ^= 1;
    return Relay::Fate::passes;
  };
  const auto [a, b] = started_apart(loop, new_keys(), options, relay);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  tampers = true;
  run_until(loop, [&] { return a->count("down", *b) == 1 && b->count("down", *a) == 1; });
  asio::ip::tcp::socket client(loop);
  client.connect({asio::ip::address_v4::loopback(), port_of(*a)});
  asio::write(client, asio::buffer(std::string("GET / HTTP/1.1\r\nHost: here\r\n\r\n")));
  run_until(loop, [&] { return a->overlay->counters().handshakes_failed == 1; });
  CHECK(a->logged("[warning] a program at ") == 1);
  CHECK(a->overlay->counters().admissions_refused == 0);
}

TEST_CASE("a link that somebody on the way breaks again and again is made ever more rarely") {
  asio::io_context loop;
  OverlaySettings options = quick_options();
  options.bulk = BulkProtection::curve;
  options.backoff_most_ms = 5000;
  Relay relay(loop);
  bool ends = true;
  relay.tamper = [&](int connection, bool, std::span<char>) {
    // Every second connection is bulk. A link is cut once it is up.
    return ends && connection % 2 == 0 && Node::all()[1]->overlay->counters().links_up > std::uint64_t(connection) / 2
               ? Relay::Fate::ends
               : Relay::Fate::passes;
  };
  const auto [a, b] = started_apart(loop, new_keys(), options, relay);
  const auto began = std::chrono::steady_clock::now();
  run_until(loop, [&] { return b->overlay->counters().links_lost == 6; });
  // The back-off was 20, 40, 80, 160 and 320 ms, each halved at most by jitter.
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(310));
  ends = false;
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
}

TEST_CASE("each of a link's two connections has its time to come up") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  Relay relay(loop);
  relay.delay = std::chrono::milliseconds(100);
  options.attempt_timeout_ms = 1600;  // both together take 2.3 s
  const auto [a, b] = started_apart(loop, keys, options, relay);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(relay.connections() >= 2);
}

TEST_CASE("a link ends when one of its connections is dead, and the other lives") {
  for (const int dead_connection : {0, 1}) {  // control is dialled first, then bulk
    asio::io_context loop;
    const ClusterKeys keys = new_keys();
    OverlaySettings options = quick_options();
    options.link_timeout_ms = 100;
    options.ping_interval_ms = 20;
    // With sealed bulk, the relay would take away the mark of the second connection.
    options.bulk = BulkProtection::curve;
    Relay relay(loop);
    const auto [a, b] = started_apart(loop, keys, options, relay);
    run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
    relay.silent_connection = dead_connection;
    run_until(loop, [&] { return a->count("up", *b) >= 2 && b->count("up", *a) >= 2; });
    const bool noticed = a->last_reason.find("silent") != std::string::npos ||  // at the node that was first
                         b->last_reason.find("silent") != std::string::npos;
    CHECK(noticed);
  }
}

TEST_CASE("a pause of this process is not taken for silence of the others") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto a = Node::started(loop, keys);
  auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  a->clock_offset_us = 100 * us_per_s;
  const auto before = a->link(*b).traffic.messages_received;
  run_until(loop, [&] { return a->link(*b).traffic.messages_received > before + 10; });
  CHECK(a->events.size() == 1);
}

TEST_CASE("redials wait longer and longer, and find the peer when it comes") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const HeldPort port(loop);
  const std::string address = port.address();
  auto b = Node::started(loop, keys, with_peers({address}));
  run_until(loop, [&] { return b->overlay->all_dialled() && b->overlay->counters().attempts_failed >= 4; });
  CHECK(b->logged("nobody answers") >= 4);
  CHECK(b->logged("[warning] no link: nobody answers at " + address) == 1);
  CHECK(b->overlay->links().at(0).last_error == "nobody answers at " + address);
  OverlaySettings options = quick_options();
  options.listen = address;
  const auto a = Node::started(loop, keys, options);
  run_until(loop, [&] { return b->linked(*a); });
}

TEST_CASE("events are told from the loop, and their handlers may call every method") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto a = Node::started(loop, keys);
  auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  bool called = false;
  a->on_link_down = [&] {
    called = true;
    CHECK(a->overlay->send(b->id, JobQuery{}) == SendResult::no_link);
    CHECK(a->decide(Identity::generate().node, true, ""));
    CHECK(a->rotate_key());
    CHECK(a->overlay->set_peers({}));
    CHECK(a->overlay->set_advertise("none"));
    a->overlay->set_denied({});
  };
  REQUIRE(a->decide(b->id, true, ""));
  a->overlay->set_denied({b->id});
  CHECK(a->denial_changes == 0);
  CHECK(a->events == std::vector<std::string>{"up " + b->id.full()});
  run_until(loop, [&] { return a->denial_changes == 3 && a->count("dead", *b) == 1; });  // the new key is noted, too
  CHECK(called);
  CHECK(a->events.size() == 3);
}

TEST_CASE("handlers may stop the overlay, and objects may go while links are being made") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto a = Node::started(loop, keys);
  auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  a->on_message = [&] { a->overlay->stop(); };
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  for (int i = 0; i < 5; ++i)
    (void)b->overlay->send(a->id, JobQuery{});
  run_until(loop, [&] { return b->count("dead", *a) == 1; });
  CHECK(a->messages.size() == 1);
  CHECK(a->overlay->send(b->id, JobQuery{}) == SendResult::no_link);

  for (int turns = 0; turns < 40; ++turns) {
    auto c = Node::started(loop, keys);
    auto d = Node::started(loop, keys, with_peers({c->overlay->address()}));
    for (int i = 0; i < turns; ++i)
      loop.run_one_for(std::chrono::milliseconds(2));
    (turns % 2 == 0 ? c : d)->overlay.reset();
    loop.poll();
  }
}

namespace {

/// Whether the bytes are one frame of ZMTP, and nothing else (RFC 23: flags, then a size of one or eight bytes).
bool is_one_frame(std::span<const char> bytes) {
  if (bytes.size() < 2) return false;
  const bool is_long = (bytes[0] & 2) != 0;
  const std::size_t head = is_long ? 9 : 2;
  if (bytes.size() < head) return false;
  std::size_t size = 0;
  for (const char digit : bytes.subspan(1, head - 1))
    size = size << 8 | static_cast<unsigned char>(digit);
  return bytes.size() - head == size;
}

}  // namespace

TEST_CASE("messages that somebody on the way takes away end the link, and the next one works") {
  // CURVE takes any message whose number is higher than that of the one before.
  const int connection = GENERATE(0, 2);  // control, bulk: between the two is an attempt to seal bulk
  const bool to_listener = GENERATE(true, false);
  asio::io_context loop;
  Relay relay(loop);
  const auto [a, b] = started_apart(loop, new_keys(), quick_options(), relay);
  run_until(loop, [&, &a = a, &b = b] { return a->linked(*b) && b->linked(*a); });
  bool is_taken = false;
  relay.tamper = [&](int number, bool up, std::span<char> bytes) {
    const bool takes = !is_taken && number == connection && up == to_listener && is_one_frame(bytes);
    is_taken = is_taken || takes;
    return takes ? Relay::Fate::is_lost : Relay::Fate::passes;
  };
  Node& receiver = to_listener ? *a : *b;
  Node& sender = to_listener ? *b : *a;
  run_until(loop, [&] { return is_taken; });
  run_until(loop, [&] { return receiver.count("down", sender) == 1; });
  CHECK_THAT(receiver.last_reason, Catch::Contains("takes messages away"));
  run_until(loop, [&] { return receiver.linked(sender) && sender.linked(receiver); });
  REQUIRE(sender.overlay->send(receiver.id, pull_reply(4096)) == SendResult::sent);
  run_until(loop, [&] { return receiver.messages.size() == 1; });
}

TEST_CASE("a link whose heartbeats alone are taken away ends") {
  asio::io_context loop;
  Relay relay(loop);
  OverlaySettings options = quick_options();
  options.link_timeout_ms = 200;
  const auto [a, b] = started_apart(loop, new_keys(), options, relay);
  run_until(loop, [&, &a = a, &b = b] { return a->linked(*b) && b->linked(*a); });
  relay.tamper = [&](int number, bool up, std::span<char> bytes) {
    const bool takes = number == 2 && up && bytes.size() < 1000 && is_one_frame(bytes);
    return takes ? Relay::Fate::is_lost : Relay::Fate::passes;
  };
  std::chrono::steady_clock::time_point next{};
  run_until(loop, [&, &a = a, &b = b] {
    if (b->linked(*a) && std::chrono::steady_clock::now() >= next) {
      next = std::chrono::steady_clock::now() +
             std::chrono::milliseconds(50);  // a heartbeat that travels with a message is not taken away
      (void)b->overlay->send(a->id, pull_reply(4096));
    }
    return a->count("down", *b) == 1;
  });
}
