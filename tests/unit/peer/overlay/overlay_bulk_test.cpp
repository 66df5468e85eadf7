// Tests bulk between real overlays: parts, acknowledgements, caps, push-back, and who waits for whom.

#include <algorithm>

#include "peer/links/pacing.hpp"
#include "tests/unit/peer/cluster.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

namespace {

/// Keeps bulk waiting at `from` for `seconds`, after a short start. Returns the bytes a second that left it. The
/// backlog is bounded by a multiple of the tested rates.
double rate_of(asio::io_context& loop, Node& from, const std::vector<Node*>& to, double seconds) {
  const PullReply reply = pull_reply(64 * 1024);
  const auto fill = [&] {
    for (const Node* node : to)
      while (from.link(*node).queued_bytes < 1'000'000 && from.overlay->send(node->id, reply) == SendResult::sent) {
      }
  };
  const auto bytes = [&] {
    const Traffic traffic = from.overlay->counters().traffic;
    return traffic.bulk_bytes_sent + traffic.control_bytes_sent;
  };
  const auto spend = [&](double length) {
    const TimeUs until = from.now() + static_cast<TimeUs>(length * us_per_s);
    run_until(loop, [&] {
      fill();
      return from.now() >= until;
    });
  };
  spend(0.1);
  const TimeUs begin = from.now();
  const std::uint64_t before = bytes();
  spend(seconds);
  return static_cast<double>(bytes() - before) / (static_cast<double>(from.now() - begin) / us_per_s);
}

}  // namespace

TEST_CASE("bulk: under a low cap large messages travel in parts, and arrive as they were, in order") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address()});
  options.link_bytes_per_s = 4e6;
  const auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  run_until(loop, [&] { return b->link(*a).round_trip_ms > 0; });  // so it has also said that it acknowledges
  std::vector<PullReply> sent;
  for (std::uint32_t i = 0; i < 4; ++i) {
    sent.push_back(pull_reply(128 * 1024 + 256 * i, i));
    CHECK(b->overlay->send(a->id, sent.back()) == SendResult::sent);
  }
  CHECK(b->overlay->send(a->id, PullRequest{}) == SendResult::sent);
  run_until(loop, [&] { return a->messages.size() == 5; });
  for (std::size_t i = 0; i < sent.size(); ++i)
    CHECK(same_values(a->messages[i].second, sent[i]));
  CHECK(std::holds_alternative<PullRequest>(a->messages[4].second));
  CHECK(a->overlay->counters().malformed == 0);
  CHECK(a->link(*b).traffic.messages_received > 20);  // each part takes at most a hundredth of a second
  run_until(loop, [&] { return b->link(*a).under_way_bytes == 0 && b->link(*a).queued_bytes == 0; });
}

TEST_CASE("bulk: a cap on a link holds within 5 %, and so does one on all links together") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address(), b->overlay->address()});
  const auto c = Node::started(loop, keys, options);
  run_until(loop, [&] { return c->linked(*a) && c->linked(*b) && a->linked(*c) && b->linked(*c); });
  CHECK(rate_of(loop, *c, {a.get()}, 0.2) > 20e6);  // negative control: without a cap it is many times more
  run_until(loop, [&] { return c->link(*a).queued_bytes == 0; });
  c->overlay->set_rates(0, 2e6);
  CHECK(rate_of(loop, *c, {a.get(), b.get()}, 0.7) == Approx(4e6).epsilon(0.05));
  c->overlay->set_rates(3e6, 0);
  CHECK(rate_of(loop, *c, {a.get(), b.get()}, 0.7) == Approx(3e6).epsilon(0.05));
}

TEST_CASE("bulk: what waits under a cap is told as time, and none is left of it afterwards") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address()});
  options.bytes_per_s = 1e6;
  const auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a) && b->link(*a).round_trip_ms > 0; });
  CHECK(b->overlay->load(a->id).backlog_us == 0);
  CHECK(b->overlay->load(a->id).bytes_per_s == 1e6);
  CHECK(b->overlay->send(a->id, pull_reply(128 * 1024)) == SendResult::sent);
  CHECK(b->overlay->load(a->id).backlog_us > 350 * us_per_ms);
  CHECK(b->overlay->load(a->id).backlog_us < 530 * us_per_ms);
  run_until(loop, [&] { return a->messages.size() == 1; });
  CHECK(b->overlay->load(a->id).backlog_us == 0);
}

TEST_CASE("bulk: a receiver that does not read stops its link only, and the sender's queue is bounded") {
  asio::io_context loop;
  asio::io_context deaf_loop;  // this loop is not turned, so its overlay reads nothing
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.max_queued_bytes = std::size_t{8} << 20;
  // On a busy machine the receiver does not read for long. It must not count as dead.
  options.link_timeout_ms = 600'000;
  options.membership.probe_interval_us = 600 * us_per_s;
  const auto a = Node::started(loop, keys, options);
  options.peers = {a->overlay->address()};
  const auto b = Node::started(loop, keys, options);
  const auto deaf = Node::started(deaf_loop, keys, options);
  run_until(loop, [&] {
    deaf_loop.restart();
    deaf_loop.poll();
    return a->linked(*b) && a->linked(*deaf) && a->link(*deaf).round_trip_ms > 0 && a->link(*b).round_trip_ms > 0;
  });
  const PullReply reply = pull_reply(256 * 1024);
  std::size_t accepted = 0;
  const auto offer = [&] {
    while (a->overlay->send(deaf->id, reply) == SendResult::sent)
      ++accepted;
  };
  const std::size_t most = options.max_queued_bytes + reply.values.size() + 2 * most_window_bytes;
  b->on_message = [&] {
    offer();
    if (b->messages.size() < 100) CHECK(a->overlay->send(b->id, reply) == SendResult::sent);
  };
  offer();
  CHECK(a->overlay->send(b->id, reply) == SendResult::sent);
  run_until(loop, [&] { return b->messages.size() >= 100; });
  CHECK(a->overlay->send(deaf->id, reply) == SendResult::full);
  CHECK(a->link(*deaf).queued_bytes + a->link(*deaf).under_way_bytes <= most);
  CHECK(accepted * reply.values.size() <= most);
  // The receiver reads again, and all messages arrive.
  run_until(loop, [&] {
    deaf_loop.restart();
    deaf_loop.poll();
    return deaf->messages.size() == accepted;
  });
}
