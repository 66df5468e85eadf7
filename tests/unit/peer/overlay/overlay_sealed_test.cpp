// Tests sealed bulk between real overlays: that it is used, when it is not, and what somebody on the way can do.

#include <algorithm>

#include "peer/admission/bulk_keys.hpp"
#include "tests/unit/peer/relay.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

namespace {

constexpr int bulk_connection = 1;  // the number at a relay: the first link's second connection

/// Each link is dialled as two connections. The second carries bulk, and is marked.
bool is_bulk(int connection) {
  return connection % 2 == bulk_connection;
}

/// Sends a message of each size both ways, and waits until all have come as they were.
void trade(asio::io_context& loop, Node& a, Node& b) {
  std::vector<PullReply> sent;
  for (const std::size_t elements : {256, 4096, 256 * 1024})
    sent.push_back(pull_reply(elements, static_cast<std::uint32_t>(sent.size())));
  a.messages.clear();
  b.messages.clear();
  for (const PullReply& reply : sent) {
    run_until(loop, [&] { return a.overlay->send(b.id, reply) == SendResult::sent; });
    run_until(loop, [&] { return b.overlay->send(a.id, reply) == SendResult::sent; });
  }
  run_until(loop, [&] { return a.messages.size() == sent.size() && b.messages.size() == sent.size(); });
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CHECK(same_values(a.messages[i].second, sent[i]));
    CHECK(same_values(b.messages[i].second, sent[i]));
  }
  CHECK(a.overlay->counters().malformed + b.overlay->counters().malformed == 0);
}

/// Returns how two nodes with these options protect bulk. Both must say the same.
BulkProtection agreed(OverlaySettings dialler, OverlaySettings listener) {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys, std::move(listener));
  dialler.peers = {a->overlay->address()};
  const auto b = Node::started(loop, keys, std::move(dialler));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(a->link(*b).bulk == b->link(*a).bulk);
  trade(loop, *a, *b);
  return b->link(*a).bulk;
}

OverlaySettings with_bulk(BulkProtection bulk) {
  OverlaySettings options = quick_options();
  options.bulk = bulk;
  return options;
}

OverlaySettings of_an_older_node() {
  OverlaySettings options = quick_options();
  options.features = 0;
  return options;
}

/// Two nodes that are connected through a relay only.
struct Apart {
  asio::io_context loop;
  Relay relay{loop};
  std::unique_ptr<Node> a, b;

  void link(const OverlaySettings& options = quick_options()) {
    std::tie(a, b) = started_apart(loop, new_keys(), options, relay);
    run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  }
  /// Checks that both ends protect bulk in this way, that the first attempt made the link, and that bulk goes both
  /// ways.
  void check(BulkProtection bulk) {
    CHECK(a->link(*b).bulk == bulk);
    CHECK(b->link(*a).bulk == bulk);
    CHECK(b->overlay->counters().attempts_failed == 0);
    trade(loop, *a, *b);
  }
};

/// A dialler made by the test. It stops once it has the listener's offer.
class HalfLink {
 public:
  HalfLink(asio::io_context& loop, const Node& target, const ClusterKeys& keys)
      : loop_(loop), address_(*parse_address(target.overlay->address(), AddressUse::dial)), control_(socket()) {
    use_curve(control_, keys.first().listening_keys().public_key, identity_.keys);
    control_.connect(address_.text());
    Hello hello;
    hello.version_low = hello.version_high = protocol_version_low;
    hello.public_key = identity_.keys.public_key;
    hello.incarnation = 1;
    hello.nonce = random_nonce();
    hello.link = 4711;
    hello.features = feature_sealed_bulk | feature_fast_aes;
    hello.proof = hello_proof(keys.first(), hello);
    const Frames frames = encode(ControlMessage(hello));
    control_.send(zmq::message_t(frames.header.data.data(), frames.header.size()), zmq::send_flags::none);
    control_hello_ = frames;
    const auto welcome = next<Welcome>(control_);
    keys_ = *bulk_keys(identity_.keys, hello, welcome, next<BulkOffer>(control_));
    hello.channel = Channel::bulk;
    hello.proof = hello_proof(keys.first(), hello);
    bulk_hello_ = encode(ControlMessage(hello));
  }
  [[nodiscard]] const BulkKeys& keys() const { return keys_; }
  [[nodiscard]] const Frames& bulk_hello() const { return bulk_hello_; }
  [[nodiscard]] const Frames& control_hello() const { return control_hello_; }

  zmq::socket_t dial(const BulkKeys& ticket) {
    zmq::socket_t bulk = socket();
    use_ticket(bulk, ticket);
    bulk.connect(address_.text());
    return bulk;
  }
  static void send(zmq::socket_t& bulk, const SealedMessage& message) {
    bulk.send(zmq::message_t(message.frames.header.data.data(), message.frames.header.size()),
              zmq::send_flags::sndmore);
    bulk.send(zmq::message_t(message.trailer.data(), message.trailer.size()), zmq::send_flags::none);
  }
  /// The first frame of the answer, or nothing if none comes for a while.
  std::optional<zmq::message_t> answer(zmq::socket_t& socket, std::chrono::milliseconds limit = patience) {
    zmq::message_t frame;
    if (!holds_within(loop_, limit, [&] { return socket.recv(frame, zmq::recv_flags::dontwait).has_value(); }))
      return std::nullopt;
    return frame;
  }

 private:
  zmq::socket_t socket() {
    zmq::socket_t made(context_, zmq::socket_type::dealer);
    made.set(zmq::sockopt::linger, 0);
    return made;
  }
  template <class Kind>
  Kind next(zmq::socket_t& socket) {
    const auto frame = answer(socket);
    REQUIRE(frame);
    Frames frames;
    const auto* data = static_cast<const std::byte*>(frame->data());
    frames.header = Bytes::adopt(std::vector<std::byte>(data, data + frame->size()));
    return std::get<Kind>(std::get<ControlMessage>(*decode(frames)));
  }

  asio::io_context& loop_;
  Address address_;
  Identity identity_ = Identity::generate();
  zmq::context_t context_;
  zmq::socket_t control_;
  BulkKeys keys_;
  Frames control_hello_;
  Frames bulk_hello_;
};

}  // namespace

TEST_CASE("bulk is sealed where both ends can, plain where both want it, and goes through CURVE otherwise") {
  using enum BulkProtection;
  CHECK(agreed(with_bulk(sealed), with_bulk(sealed)) == sealed);
  CHECK(agreed(with_bulk(plain), with_bulk(plain)) == plain);
  CHECK(agreed(with_bulk(plain), with_bulk(sealed)) == sealed);
  CHECK(agreed(with_bulk(sealed), with_bulk(plain)) == sealed);
  CHECK(agreed(with_bulk(curve), with_bulk(sealed)) == curve);
  CHECK(agreed(with_bulk(sealed), with_bulk(curve)) == curve);
  CHECK(agreed(of_an_older_node(), with_bulk(sealed)) == curve);
  CHECK(agreed(with_bulk(sealed), of_an_older_node()) == curve);
  OverlaySettings without_aes = quick_options();
  without_aes.features &= ~feature_fast_aes;
  CHECK(agreed(without_aes, with_bulk(sealed)) == sealed);
  OverlaySettings ipv6 = quick_options();
  ipv6.listen = "tcp://[::1]:0";
  CHECK(agreed(with_bulk(sealed), ipv6) == sealed);
}

TEST_CASE("bulk is sealed, too, after the listening key has changed") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto made = a->rotate_key();
  REQUIRE(made);
  run_until(loop, [&] { return a->overlay->key_ring().front().fingerprint == *made; });
  REQUIRE(a->kept_keys);
  const auto b = Node::started(loop, *a->kept_keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  CHECK(a->link(*b).bulk == BulkProtection::sealed);
  trade(loop, *a, *b);
}

TEST_CASE("where the network takes the mark away, or lets nothing with it through, bulk goes through CURVE") {
  Apart nodes;
  const bool swallows = GENERATE(false, true);
  if (swallows) {
    nodes.relay.keeps_mark = [](int connection) { return connection == bulk_connection; };
    nodes.relay.silent_connection = bulk_connection;
  }
  nodes.link();
  nodes.check(BulkProtection::curve);
}

TEST_CASE("where marked connections fail only after their handshake, bulk goes through CURVE") {
  const bool welcome_is_lost = GENERATE(true, false);
  Apart nodes;
  nodes.relay.keeps_mark = [](int connection) { return connection == bulk_connection; };
  bool ready = false;  // ZeroMQ's handshake is over
  nodes.relay.tamper = [&](int connection, bool up, std::span<char> bytes) {
    if (connection != bulk_connection) return Relay::Fate::passes;
    if (ready && !welcome_is_lost) return Relay::Fate::ends;
    if (ready) return up ? Relay::Fate::passes : Relay::Fate::is_lost;
    ready = std::string_view(bytes.data(), bytes.size()).find("READY") != std::string_view::npos;
    return Relay::Fate::passes;
  };
  nodes.link();
  nodes.check(BulkProtection::curve);
}

TEST_CASE("a node that wants no sealed bulk takes connections whatever mark a network gives them") {
  Apart nodes;
  nodes.relay.keeps_mark = [](int) { return true; };
  nodes.link(with_bulk(BulkProtection::curve));
  nodes.check(BulkProtection::curve);
}

TEST_CASE("a relay that keeps the mark carries sealed bulk") {
  Apart nodes;
  nodes.relay.keeps_mark = is_bulk;
  nodes.link();
  nodes.check(BulkProtection::sealed);
}

TEST_CASE("with threads that seal, messages of all sizes arrive as they were, in order") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.seal_threads = 3;
  const auto a = Node::started(loop, keys, options);
  options.peers = {a->overlay->address()};
  const auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  std::vector<PullReply> sent;
  for (std::uint32_t i = 0; i < 60; ++i)
    sent.push_back(pull_reply(i % 3 == 0 ? 256 * 1024 : i % 3 == 1 ? 256 : 20 * 1024, i));
  for (const PullReply& reply : sent) {
    run_until(loop, [&] { return a->overlay->send(b->id, reply) == SendResult::sent; });
    run_until(loop, [&] { return b->overlay->send(a->id, reply) == SendResult::sent; });
  }
  run_until(loop, [&] { return a->messages.size() == sent.size() && b->messages.size() == sent.size(); });
  for (std::size_t i = 0; i < sent.size(); ++i) {
    CHECK(same_values(a->messages[i].second, sent[i]));
    CHECK(same_values(b->messages[i].second, sent[i]));
  }
  run_until(loop, [&] { return a->link(*b).queued_bytes == 0 && b->link(*a).queued_bytes == 0; });
}

TEST_CASE("whoever changes sealed bulk on its way ends the link, and nothing of it is taken") {
  const bool to_listener = GENERATE(true, false);
  Apart nodes;
  nodes.relay.keeps_mark = is_bulk;
  nodes.link();
  nodes.check(BulkProtection::sealed);
  Node& from = to_listener ? *nodes.b : *nodes.a;
  Node& to = to_listener ? *nodes.a : *nodes.b;
  to.messages.clear();
  nodes.relay.tamper = [&](int connection, bool up, std::span<char> bytes) {
    if (connection == bulk_connection && up == to_listener && bytes.size() > 1000) bytes[bytes.size() / 2] ^= 1;
    return Relay::Fate::passes;
  };
  CHECK(from.overlay->send(to.id, pull_reply(256 * 1024)) == SendResult::sent);
  run_until(nodes.loop, [&] { return to.count("down", from) >= 1; });
  CHECK(to.logged("is not as it was sealed") >= 1);
  CHECK(to.messages.empty());
  // Messages on a new link are sound.
  run_until(nodes.loop, [&] { return nodes.a->linked(*nodes.b) && nodes.b->linked(*nodes.a); });
  trade(nodes.loop, *nodes.a, *nodes.b);
}

TEST_CASE("a sealed connection takes a ticket, which is good once, and what is said on it must be sealed") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  HalfLink link(loop, *a, keys);
  const SealForm form;
  const std::chrono::milliseconds a_while{300};

  SECTION("the right ticket, and what is sealed with the link's key") {
    OutgoingSeal out(form, link.keys().to_listener);
    IncomingSeal in(form, link.keys().to_dialler);
    zmq::socket_t bulk = link.dial(link.keys());
    HalfLink::send(bulk, out.take(0, 1).seal(link.bulk_hello()));
    CHECK(link.answer(bulk));
    zmq::socket_t again = link.dial(link.keys());
    OutgoingSeal afresh(form, link.keys().to_listener);
    HalfLink::send(again, afresh.take(0, 1).seal(link.bulk_hello()));
    CHECK_FALSE(link.answer(again, a_while));
  }
  SECTION("another password or name") {
    BulkKeys forged = link.keys();
    (GENERATE(true, false) ? forged.ticket_password : forged.ticket_name)[0] ^= 1;
    zmq::socket_t bulk = link.dial(forged);
    OutgoingSeal out(form, link.keys().to_listener);
    HalfLink::send(bulk, out.take(0, 1).seal(link.bulk_hello()));
    CHECK_FALSE(link.answer(bulk, a_while));
  }
  SECTION("the right ticket, read from the wire, without the key") {
    zmq::socket_t bulk = link.dial(link.keys());
    OutgoingSeal out(form, Secret());
    HalfLink::send(bulk, out.take(0, 1).seal(link.bulk_hello()));
    CHECK_FALSE(link.answer(bulk, a_while));
    CHECK(a->overlay->counters().strangers == 1);
  }
  SECTION("the right ticket, and a hello for control, which would not be under CURVE") {
    zmq::socket_t bulk = link.dial(link.keys());
    OutgoingSeal out(form, link.keys().to_listener);
    HalfLink::send(bulk, out.take(0, 1).seal(link.control_hello()));
    CHECK(link.answer(bulk));  // the answer says why not
    CHECK(a->overlay->counters().admissions_refused == 1);
  }
  SECTION("the right ticket, and a hello that is not sealed") {
    zmq::socket_t bulk = link.dial(link.keys());
    const Frames& hello = link.bulk_hello();
    bulk.send(zmq::message_t(hello.header.data.data(), hello.header.size()), zmq::send_flags::none);
    CHECK_FALSE(link.answer(bulk, a_while));
    CHECK(a->overlay->counters().strangers == 1);
  }
  SECTION("the right ticket under another routing id") {
    zmq::socket_t bulk = link.dial(link.keys());
    bulk.set(zmq::sockopt::routing_id, "another");
    bulk.disconnect(a->overlay->address());
    bulk.connect(a->overlay->address());
    const Frames& hello = link.bulk_hello();
    bulk.send(zmq::message_t(hello.header.data.data(), hello.header.size()), zmq::send_flags::none);
    const auto refused = link.answer(bulk, a_while);
    if (refused) CHECK(a->overlay->counters().admissions_refused == 1);
  }
  CHECK(a->events.empty());
  // Other nodes can still join.
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  trade(loop, *a, *b);
}
