// Tests links between real overlays: which end dials, which messages pass, and what is counted.

#include <algorithm>

#include "tests/unit/peer/cluster.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

TEST_CASE("one end dials and both see the link and can send") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address()});
  options.name = "bée";
  const auto b = Node::started(loop, keys, options);
  CHECK_FALSE(b->overlay->all_dialled());
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(b->overlay->all_dialled());
  CHECK(a->count("up", *b) == 1);
  CHECK(b->count("up", *a) == 1);
  CHECK(a->link(*b).name == "bée");
  CHECK(a->link(*b).address == b->overlay->address());
  CHECK_FALSE(a->link(*b).dialled_by_us);
  CHECK(b->link(*a).dialled_by_us);

  CHECK(a->overlay->send(b->id, JobQuery{{1, 2}}) == SendResult::sent);
  CHECK(b->overlay->send(a->id, JobQuery{{3, 4}}) == SendResult::sent);
  run_until(loop, [&] { return a->messages.size() == 1 && b->messages.size() == 1; });
  CHECK(a->messages[0].first == b->id);
  CHECK(std::get<JobQuery>(a->messages[0].second).job == JobKey{3, 4});
  CHECK(std::get<JobQuery>(b->messages[0].second).job == JobKey{1, 2});
  run_until(loop, [&] { return a->link(*b).round_trip_ms > 0 && b->link(*a).round_trip_ms > 0; });
}

TEST_CASE("a link has the features that both ends name; bits that one end does not know do no harm") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings newer = quick_options();
  newer.features = 1ULL << 63 | 0b0110;
  const auto a = Node::started(loop, keys, newer);
  OverlaySettings older = with_peers({a->overlay->address()});
  older.features = 0b0011;
  const auto b = Node::started(loop, keys, older);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(a->link(*b).features == 0b0010);
  CHECK(b->link(*a).features == 0b0010);
}

TEST_CASE("sending to a node without a link says so") {
  asio::io_context loop;
  const auto a = Node::started(loop, new_keys());
  CHECK(a->overlay->send(Identity::generate().node, JobQuery{}) == SendResult::no_link);
}

TEST_CASE("both ends dial at once and keep one link") {
  for (int round = 0; round < 10; ++round) {
    asio::io_context loop;
    const ClusterKeys keys = new_keys();
    const auto a = Node::started(loop, keys);
    const auto b = Node::started(loop, keys);
    REQUIRE(a->overlay->set_peers({b->overlay->address()}));
    REQUIRE(b->overlay->set_peers({a->overlay->address()}));
    run_until(loop, [&] {
      return a->linked(*b) && b->linked(*a) && a->link(*b).dialled_by_us != b->link(*a).dialled_by_us &&
             a->overlay->all_dialled() && b->overlay->all_dialled();
    });
    // Many heartbeats later there is still exactly that link.
    const auto before = a->link(*b).traffic.messages_received;
    run_until(loop, [&] { return a->link(*b).traffic.messages_received > before + 10; });
    CHECK(a->count("up", *b) == 1);
    CHECK(b->count("up", *a) == 1);
    CHECK(a->events.size() == 1);
    CHECK(b->events.size() == 1);
  }
}

TEST_CASE("large payloads arrive intact both ways, in order, and are counted") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });

  constexpr std::uint32_t count = 6;
  std::vector<PullReply> sent;
  for (std::uint32_t i = 0; i < count; ++i)
    sent.push_back(pull_reply(std::size_t{1} << 20, i));
  for (const PullReply& reply : sent) {
    CHECK(a->overlay->send(b->id, reply) == SendResult::sent);
    CHECK(b->overlay->send(a->id, reply) == SendResult::sent);
  }
  run_until(loop, [&] { return a->messages.size() == count && b->messages.size() == count; });
  for (std::uint32_t i = 0; i < count; ++i) {
    CHECK(same_values(a->messages[i].second, sent[i]));
    CHECK(same_values(b->messages[i].second, sent[i]));
  }
  const std::uint64_t bytes = count * (std::uint64_t{4} << 20);
  CHECK(a->link(*b).traffic.payload_bytes_sent == bytes);
  CHECK(a->link(*b).traffic.payload_bytes_received == bytes);
  CHECK(a->overlay->counters().traffic.payload_bytes_sent == bytes);
  CHECK(a->link(*b).traffic.bytes_sent() > bytes);
  CHECK(a->link(*b).traffic.bytes_sent() < bytes + bytes / 50);  // also in parts of the least size, on a busy machine
  run_until(loop, [&] { return a->link(*b).queued_bytes == 0 && b->link(*a).queued_bytes == 0; });
}

TEST_CASE("the largest fragment travels, and its memory is released") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  PullReply reply = pull_reply(max_fragment_elements, 3);
  const std::weak_ptr<const void> owner = reply.values.owner;
  CHECK(a->overlay->send(b->id, reply) == SendResult::sent);
  run_until(loop, [&] { return b->messages.size() == 1; });
  CHECK(same_values(b->messages[0].second, reply));
  reply = {};
  run_until(loop, [&] { return owner.expired(); });
}

TEST_CASE("a full queue is told, and frees up") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.max_queued_bytes = std::size_t{8} << 20;
  const auto a = Node::started(loop, keys, options);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  // Nobody reads while this loop does not turn, so the queue must fill.
  const PullReply reply = pull_reply(std::size_t{1} << 20, 0);
  std::size_t sent = 0;
  SendResult result = SendResult::sent;
  for (int i = 0; i < 1000 && result != SendResult::full; ++i) {
    result = a->overlay->send(b->id, reply);
    sent += result == SendResult::sent;
  }
  CHECK(result == SendResult::full);
  CHECK(a->link(*b).queued_bytes <= options.max_queued_bytes + (std::size_t{4} << 20));
  CHECK(a->overlay->counters().sends_full == 1);
  run_until(loop, [&] { return b->messages.size() == sent; });
  run_until(loop, [&] { return a->overlay->send(b->id, reply) == SendResult::sent; });
}

TEST_CASE("heartbeats pass by a queue of megabytes") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  const PullReply reply = pull_reply(std::size_t{1} << 20, 0);
  b->on_message = [&] {
    if (b->messages.size() < 40) (void)a->overlay->send(b->id, reply);
  };
  for (int i = 0; i < 8; ++i)
    CHECK(a->overlay->send(b->id, reply) == SendResult::sent);
  run_until(loop, [&] { return b->messages.size() >= 40; });
  CHECK(a->linked(*b));
  CHECK(a->events.size() == 1);
}

TEST_CASE("four nodes find each other through one") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  auto nodes = start_together(loop, keys, 4);
  run_until(loop, [&] {
    for (const auto& a : nodes) {
      for (const auto& b : nodes) {
        if (a != b && !a->linked(*b)) return false;
      }
    }
    return true;
  });
  for (const auto& a : nodes) {
    for (const auto& b : nodes) {
      if (a != b) CHECK(a->count("up", *b) == 1);
    }
  }
}

TEST_CASE("a node that only dials out is reached by the others over its links") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address()});
  options.advertise = "none";
  const auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(a->link(*b).address.empty());
  CHECK(a->overlay->send(b->id, JobQuery{}) == SendResult::sent);
  run_until(loop, [&] { return b->messages.size() == 1; });
}

TEST_CASE("a node listening everywhere is known by the address others see") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address()});
  options.listen = "tcp://*:0";
  const auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b); });
  const std::string address = b->overlay->address();
  CHECK(a->link(*b).address == "tcp://127.0.0.1" + address.substr(address.rfind(':')));
}

TEST_CASE("a node that dials itself, or one node by two names, keeps one link and settles") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const std::string address = a->overlay->address();
  const auto b =
      Node::started(loop, keys, with_peers({address, "tcp://localhost" + address.substr(address.rfind(':'))}));
  REQUIRE(b->overlay->set_peers({b->overlay->address()}));
  run_until(loop, [&] { return b->linked(*a) && b->overlay->all_dialled(); });
  const auto before = b->link(*a).traffic.messages_received;
  run_until(loop, [&] { return b->link(*a).traffic.messages_received > before + 20; });
  CHECK(b->events.size() == 1);
  CHECK(a->events.size() == 1);
  CHECK(b->overlay->links().size() == 1);
}

TEST_CASE("IPv6") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.listen = "tcp://[::1]:0";
  const auto a = std::make_unique<Node>(loop, keys, options);
  if (const auto started = a->overlay->start(); !started) {
    WARN("no IPv6 here: " << started.error());
    return;
  }
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
}
