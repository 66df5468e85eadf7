// Runs real overlays in one process, on one loop and loopback ports that the system chooses, for the overlay tests.
//
// Nothing here sleeps: run_until() turns the loop until a condition holds, and fails the test if it does not in time.

#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <asio/ip/tcp.hpp>
#include <chrono>
#include <sstream>
#include <string>

#include "catch.hpp"
#include "peer/overlay/overlay.hpp"

namespace gossamer::peer::test {

inline constexpr std::chrono::seconds patience{20};

template <class Condition>
bool holds_within(asio::io_context& loop, std::chrono::milliseconds limit, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// A port at which the overlays of one test listen, one after the other. It stays bound throughout, so that the system
/// gives it to no other program. An overlay may bind it as well.
class HeldPort {
 public:
  explicit HeldPort(asio::io_context& loop) : socket_(loop, asio::ip::tcp::v4()) {
    socket_.set_option(asio::socket_base::reuse_address(true));
    socket_.bind({asio::ip::address_v4::loopback(), 0});
  }
  [[nodiscard]] std::string address() const {
    return "tcp://127.0.0.1:" + std::to_string(socket_.local_endpoint().port());
  }

 private:
  asio::ip::tcp::socket socket_;
};

/// Options with fast timers, so that a test of a time-out takes tenths of a second.
inline OverlaySettings quick_options() {
  OverlaySettings options;
  options.listen = "tcp://127.0.0.1:0";
  options.ping_interval_ms = 50;
  options.link_timeout_ms = 1500;
  options.membership.probe_interval_us = 200 * us_per_ms;
  options.membership.probe_timeout_us = 100 * us_per_ms;
  options.membership.suspicion_mult = 3;
  options.membership.gossip_interval_us = 20 * us_per_ms;
  options.membership.reconnect_interval_us = 500 * us_per_ms;
  options.membership.shuffle_interval_us = 500 * us_per_ms;
  options.membership.tick_us = 10 * us_per_ms;
  options.attempt_timeout_ms = 3000;
  options.backoff_least_ms = 20;
  options.backoff_most_ms = 200;
  options.tick_ms = 10;
  options.io_threads = 1;
  return options;
}

class Node : public OverlayEvents {
 public:
  Node(asio::io_context& loop, const ClusterKeys& keys, OverlaySettings options = quick_options(),
       Identity identity = Identity::generate())
      : id(identity.node), identity(identity) {
    log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_text));
    log->set_level(spdlog::level::debug);
    all().push_back(this);
    overlay = std::make_unique<Overlay>(
        loop, std::move(options), std::move(identity), keys, *this, log, gossip::Random(7), [this] { return now(); },
        [this] { return time_of_day; });
  }
  ~Node() override { std::erase(all(), this); }
  /// All nodes that are alive, for messages about a failure.
  static std::vector<const Node*>& all() {
    static std::vector<const Node*> nodes;
    return nodes;
  }
  /// Makes a node that has started and listens.
  static std::unique_ptr<Node> started(asio::io_context& loop, const ClusterKeys& keys,
                                       OverlaySettings options = quick_options(),
                                       Identity identity = Identity::generate()) {
    auto node = std::make_unique<Node>(loop, keys, std::move(options), std::move(identity));
    const auto result = node->overlay->start();
    INFO((result ? std::string() : result.error()));
    REQUIRE(result);
    return node;
  }

  void link_up(const NodeId& node) override { events.push_back("up " + node.full()); }
  void link_down(const NodeId& node, const std::string& reason) override {
    events.push_back("down " + node.full());
    last_reason = reason;
    if (on_link_down) on_link_down();
  }
  void node_dead(const NodeId& node) override { events.push_back("dead " + node.full()); }
  void received(const NodeId& from, Message&& message) override {
    messages.emplace_back(from, std::move(message));
    if (on_message) on_message();
  }

  std::expected<void, std::string> keep_key_ring(const KeyRing& ring) override {
    if (!keep_error.empty()) return std::unexpected(keep_error);
    kept_ring = ring.notes();
    kept_keys = ring.cluster_keys();
    return {};
  }
  void denials_changed() override { ++denial_changes; }

  // Decisions of an operator of this node, signed with `signs` if there is one.
  std::expected<Denial, std::string> decide(const NodeId& node, bool denied, const std::string& reason) {
    auto denial = overlay->propose(node, denied, reason);
    return made(denial, [&] { return overlay->decide(*denial); });
  }
  std::expected<Fingerprint, std::string> rotate_key() {
    auto key = overlay->propose_key();
    const auto added = made(key, [&] { return overlay->add_key(*key); });
    if (!added) return std::unexpected(added.error());
    return added->key.fingerprint();
  }
  std::expected<RetiredKey, std::string> retire_key(const Fingerprint& fingerprint) {
    auto retired = overlay->propose_retirement(fingerprint);
    return made(retired, [&] { return overlay->retire_key(*retired); });
  }
  std::optional<SigningKey> signs;

  [[nodiscard]] TimeUs now() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
               .count() +
           clock_offset_us;
  }
  [[nodiscard]] bool linked(const Node& other) const {
    const auto links = overlay->links();
    return std::any_of(links.begin(), links.end(), [&](const auto& link) { return link.node == other.id && link.up; });
  }
  [[nodiscard]] LinkStatus link(const Node& other) const {
    for (const LinkStatus& link : overlay->links()) {
      if (link.node == other.id) return link;
    }
    return {};
  }
  [[nodiscard]] long count(const std::string& what, const Node& other) const {
    return std::count(events.begin(), events.end(), what + " " + other.id.full());
  }
  [[nodiscard]] long logged(const std::string& text) const {
    long found = 0;
    const std::string all = log_text.str();
    for (std::size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1))
      ++found;
    return found;
  }

  NodeId id;
  Identity identity;
  std::ostringstream log_text;
  std::shared_ptr<spdlog::logger> log;
  std::vector<std::string> events;
  std::vector<std::pair<NodeId, Message>> messages;
  std::string last_reason;
  std::string kept_ring;
  std::string keep_error;  ///< if not empty, keep_key_ring() fails with this
  std::optional<ClusterKeys> kept_keys;
  int denial_changes = 0;
  std::function<void()> on_message;
  std::function<void()> on_link_down;
  TimeUs clock_offset_us = 0;
  TimeUs time_of_day = 1'800'000'000 * us_per_s;  ///< does not advance
  std::unique_ptr<Overlay> overlay;

 private:
 private:
  template <class Decision, class Make>
  Decision made(Decision& proposed, Make make) {
    if (proposed && signs) proposed->signature = signs->sign(proposed->statement());
    if (const auto done = proposed ? make() : std::expected<void, std::string>(); !done)
      return std::unexpected(done.error());
    return proposed;
  }
};

/// Turns the loop until the condition holds. A failure shows what each node has logged.
template <class Condition>
void run_until(asio::io_context& loop, Condition condition) {
  if (holds_within(loop, patience, condition)) return;
  for (const Node* node : Node::all())
    UNSCOPED_INFO("node " << node->id.brief() << ":\n" << node->log_text.str());
  REQUIRE(condition());
}

inline ClusterKeys new_keys() {
  return ClusterKeys({ClusterKey::generate()});
}

inline OverlaySettings with_peers(std::vector<std::string> peers) {
  OverlaySettings options = quick_options();
  options.peers = std::move(peers);
  return options;
}

/// A bulk message whose values depend on their places.
inline PullReply pull_reply(std::size_t elements, std::uint32_t fragment = 0) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i)
    values[i] = static_cast<float>(i % 65'521) + static_cast<float>(fragment);
  PullReply reply;
  reply.fragment = fragment;
  reply.hash = 17;
  reply.values = Bytes::adopt(std::move(values));
  return reply;
}

inline bool same_values(const Message& a, const PullReply& b) {
  const auto* reply = std::get_if<PullReply>(&a);
  return reply != nullptr && reply->fragment == b.fragment && std::ranges::equal(reply->values.data, b.values.data);
}

/// Starts a node, and others that dial it.
inline std::vector<std::unique_ptr<Node>> start_together(asio::io_context& loop, const ClusterKeys& keys,
                                                         std::size_t count) {
  std::vector<std::unique_ptr<Node>> nodes;
  nodes.push_back(Node::started(loop, keys));
  while (nodes.size() < count)
    nodes.push_back(Node::started(loop, keys, with_peers({nodes[0]->overlay->address()})));
  return nodes;
}

}  // namespace gossamer::peer::test
