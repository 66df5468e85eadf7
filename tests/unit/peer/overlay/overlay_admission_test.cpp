// Tests who gets in and who does not: other cluster keys, rings of keys, denied nodes, garbage, plain ZeroMQ, insiders.

#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "peer/admission/admission.hpp"
#include "peer/links/cut_handshakes.hpp"
#include "tests/unit/peer/cluster.hpp"
#include "tests/unit/peer/relay.hpp"

using namespace gossamer;
using namespace gossamer::peer;
using namespace gossamer::peer::test;

namespace {

/// The name of an interface that is up and not loopback; empty if there is none.
std::string another_interface() {
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
    std::string state;
    if (std::ifstream(entry.path() / "operstate") >> state && state == "up") return entry.path().filename();
  }
  return {};
}

asio::ip::tcp::endpoint endpoint_of(const Node& node) {
  const std::string address = node.overlay->address();
  return {asio::ip::address_v4::loopback(),
          static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))};
}

/// A misbehaving insider: a ZeroMQ client that knows the cluster key and sends what the test likes.
class Insider {
 public:
  Insider(const Node& target, const ClusterKeys& keys, const std::string& routing_id = {},
          const Identity& known_as = Identity::generate())
      : identity(known_as), socket_(context_, zmq::socket_type::dealer) {
    if (!routing_id.empty()) socket_.set(zmq::sockopt::routing_id, routing_id);
    const KeyPair server = keys.first().listening_keys();
    const auto buffer = [](std::span<const std::uint8_t, key_bytes> key) { return zmq::const_buffer(key.data(), 32); };
    socket_.set(zmq::sockopt::curve_serverkey, buffer(server.public_key));
    socket_.set(zmq::sockopt::curve_publickey, buffer(identity.keys.public_key));
    socket_.set(zmq::sockopt::curve_secretkey, buffer(identity.keys.secret_key.bytes()));
    socket_.set(zmq::sockopt::linger, 0);
    socket_.connect(target.overlay->address());
  }
  void send(const Frames& frames) {
    std::vector<Bytes> parts{frames.header};
    parts.insert(parts.end(), frames.payload.begin(), frames.payload.begin() + static_cast<long>(frames.payload_count));
    send_raw(parts);
  }
  void send_raw(const std::vector<Bytes>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      socket_.send(zmq::message_t(parts[i].data.data(), parts[i].size()),
                   i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
  /// The next answer, if one has come.
  std::optional<Packet> receive() {
    zmq::message_t part;
    if (!socket_.recv(part, zmq::recv_flags::dontwait)) return std::nullopt;
    const auto* data = static_cast<const std::byte*>(part.data());
    Frames frames;
    frames.header = Bytes::adopt(std::vector<std::byte>(data, data + part.size()));
    auto packet = decode(frames);
    return packet ? std::optional(std::move(*packet)) : std::nullopt;
  }
  Hello hello(const ClusterKeys& keys, Channel channel) {
    Hello hello;
    hello.version_low = protocol_version_low;
    hello.version_high = protocol_version_high;
    hello.public_key = identity.keys.public_key;
    hello.incarnation = 1;
    hello.nonce = random_nonce();
    hello.link = 4711;
    hello.channel = channel;
    hello.proof = hello_proof(keys.first(), hello);
    return hello;
  }
  std::optional<Rejected> rejection(asio::io_context& loop) {
    std::optional<Packet> packet;
    run_until(loop, [&] { return (packet = receive()).has_value(); });
    const auto* control = std::get_if<ControlMessage>(&*packet);
    const auto* rejected = control ? std::get_if<Rejected>(control) : nullptr;
    return rejected ? std::optional(*rejected) : std::nullopt;
  }

  Identity identity;

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

/// A program that is no node. It sends something to each caller, and hangs up when the caller speaks.
class OtherProgram {
 public:
  OtherProgram(asio::io_context& loop, std::string says)
      : acceptor_(loop, {asio::ip::address_v4::loopback(), 0}), says_(std::move(says)) {
    accept();
  }
  [[nodiscard]] std::string address() const {
    return "tcp://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket taken) {
      if (error) return;
      const auto socket = std::make_shared<asio::ip::tcp::socket>(std::move(taken));
      asio::error_code ignored;
      asio::write(*socket, asio::buffer(says_), ignored);
      const auto heard = std::make_shared<std::array<char, 256>>();
      socket->async_read_some(asio::buffer(*heard), [socket, heard](const asio::error_code&, std::size_t) {});
      accept();
    });
  }

  asio::ip::tcp::acceptor acceptor_;
  std::string says_;
};

}  // namespace

TEST_CASE("another cluster key: no link, and one clear line at each end") {
  asio::io_context loop;
  const auto a = Node::started(loop, new_keys());
  const auto b = Node::started(loop, new_keys(), with_peers({a->overlay->address()}));
  run_until(loop, [&] { return b->overlay->counters().attempts_failed >= 4; });
  CHECK(b->overlay->all_dialled());
  CHECK(a->events.empty());
  CHECK(b->events.empty());
  CHECK(b->logged("[warning] no link: the node at " + a->overlay->address() +
                  " does not hold our cluster key (or this node does not hold its key)") == 1);
  CHECK(a->overlay->counters().handshakes_failed >= 1);
  CHECK(a->logged("turned away a connection from 127.0.0.1: a node with another cluster key") >= 1);
  CHECK(a->overlay->counters().admissions_refused >= 1);
  CHECK(b->overlay->links().at(0).last_error.find("cluster key") != std::string::npos);
}

TEST_CASE("another program at a member's port is told for what it is, once") {
  asio::io_context loop;
  OtherProgram ssh(loop, "SSH-2.0-OpenSSH_9.2p1 Debian\r\n");
  OtherProgram serf(loop, "");
  const auto b = Node::started(loop, new_keys(), with_peers({ssh.address(), serf.address()}));
  run_until(loop, [&] {
    const auto links = b->overlay->links();
    return b->overlay->counters().attempts_failed >= 6 &&
           std::ranges::none_of(links, [](const LinkStatus& link) { return link.last_error.empty(); });
  });
  CHECK(b->logged("[warning] no link: another program has the port at " + ssh.address() +
                  ": it answers with \"SSH-2.0-OpenSSH_9.2p1 De\"") == 1);
  CHECK(b->logged("[warning] no link: the port at " + serf.address() +
                  " takes connections and says nothing that a node would say") == 1);
  CHECK(b->logged("cluster key") == 0);
  for (const LinkStatus& link : b->overlay->links())
    CHECK(link.last_error.find("usual port is 26746") != std::string::npos);
}

TEST_CASE("a port that takes connections and says nothing is told as that, each time") {
  asio::io_context loop;
  asio::ip::tcp::acceptor silent(loop, {asio::ip::address_v4::loopback(), 0});  // the system takes the connections
  OverlaySettings options = with_peers({"tcp://127.0.0.1:" + std::to_string(silent.local_endpoint().port())});
  options.attempt_timeout_ms = 200;
  const auto b = Node::started(loop, new_keys(), options);
  for (std::uint64_t attempt = 1; attempt <= 6; ++attempt) {
    run_until(loop, [&] { return b->overlay->counters().attempts_failed >= attempt; });
    CHECK(b->overlay->links().at(0).last_error.find("says nothing that a node would say") != std::string::npos);
  }
  CHECK(b->logged("cluster key") == 0);
}

TEST_CASE("a handshake that ends late is not told as another key") {
  asio::io_context loop;
  asio::ip::tcp::acceptor acceptor(loop, {asio::ip::address_v4::loopback(), 0});
  // ZMTP 3.1's greeting (RFC 37) of a server with CURVE.
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE", 17);
  greeting.resize(32);
  greeting.push_back(1);
  greeting.resize(64);
  std::vector<std::shared_ptr<asio::ip::tcp::socket>> taken;
  std::function<void()> accept = [&] {
    acceptor.async_accept([&](const asio::error_code& error, asio::ip::tcp::socket socket) {
      if (error) return;
      asio::error_code ignored;
      asio::write(socket, asio::buffer(greeting), ignored);
      taken.push_back(std::make_shared<asio::ip::tcp::socket>(std::move(socket)));
      const auto timer = std::make_shared<asio::steady_timer>(loop, greeting_patience + std::chrono::milliseconds(100));
      timer->async_wait([timer, socket = taken.back()](const asio::error_code&) {
        asio::error_code failed;
        socket->close(failed);
      });
      accept();
    });
  };
  accept();
  const auto b = Node::started(loop, new_keys(),
                               with_peers({"tcp://127.0.0.1:" + std::to_string(acceptor.local_endpoint().port())}));
  run_until(loop, [&] { return b->overlay->counters().attempts_failed == 1; });
  CHECK(b->overlay->links().at(0).last_error.find("ended before its handshake was done") != std::string::npos);
  CHECK(b->logged("cluster key") == 0);
}

TEST_CASE("a handshake that is cut off is tried again with longer and longer pauses, a few times") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CutHandshakes cut(seed);
    for (int again = 0; again < 2; ++again) {
      std::chrono::microseconds longest = least_cut_pause;
      for (int n = 0; n < most_cut_handshakes; ++n) {
        CHECK(cut.any() == (n > 0));
        const auto pause = cut.pause();
        REQUIRE(pause);
        CHECK((*pause >= longest / 2 && *pause <= longest));
        longest = std::min<std::chrono::microseconds>(2 * longest, most_cut_pause);
      }
      CHECK_FALSE(cut.pause());
      cut.begin_anew();
    }
  }
}

namespace {

/// Resets the first connections once the dialler has sent its first command, which asks for the listening key. A node
/// that has another key ends them there, too, but does not reset them.
void reset_first(Relay& relay, int count) {
  const auto heard = std::make_shared<std::map<int, std::size_t>>();
  relay.tamper = [heard, count](int number, bool to_listener, std::span<char> bytes) {
    if (to_listener) (*heard)[number] += bytes.size();
    return number < count && (*heard)[number] > 64 ? Relay::Fate::is_reset : Relay::Fate::passes;
  };
}

}  // namespace

TEST_CASE("handshakes that are cut off are repeated soon, and not taken for another key") {
  asio::io_context loop;
  Relay relay(loop);
  reset_first(relay, 6);
  OverlaySettings options = quick_options();
  options.backoff_least_ms = OverlaySettings{}.backoff_least_ms;
  options.backoff_most_ms = OverlaySettings{}.backoff_most_ms;
  const auto [a, b] = started_apart(loop, new_keys(), options, relay);
  const auto begun = std::chrono::steady_clock::now();
  run_until(loop, [&, a = a.get(), b = b.get()] { return a->linked(*b) && b->linked(*a); });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(3));
  CHECK(b->logged("no link") == 0);
  CHECK(b->overlay->counters().attempts == 1);
}

TEST_CASE("an invited node whose handshakes are cut off joins soon, and is not told that its invitation is worthless") {
  asio::io_context loop;
  Relay relay(loop);
  reset_first(relay, 6);
  const auto a = Node::started(loop, new_keys());
  relay.lead_to(port_of(*a));
  const auto line = a->overlay->invite(us_per_s, {*parse_address(relay.address(), AddressUse::dial)});
  REQUIRE(line);
  const auto b = Node::started(loop, new_keys());
  std::optional<std::expected<void, std::string>> joined;
  const auto begun = std::chrono::steady_clock::now();
  REQUIRE(b->overlay->join(*line, [&](std::expected<void, std::string> result) { joined = std::move(result); }));
  run_until(loop, [&] { return joined.has_value(); });
  INFO((*joined ? std::string() : joined->error()));
  CHECK(*joined);
  CHECK(relay.connections() >= 7);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(3));
}

TEST_CASE("where every handshake is cut off no key is blamed, and the port is not flooded") {
  asio::io_context loop;
  Relay relay(loop);
  reset_first(relay, 1'000'000);
  const auto [a, b] = started_apart(loop, new_keys(), quick_options(), relay);
  run_until(loop, [&, b = b.get()] { return b->overlay->counters().attempts_failed == 1; });
  CHECK(relay.connections() == 1 + most_cut_handshakes + 1 /* asks who answers */);
  CHECK(b->overlay->links().at(0).last_error.find("ended before its handshake was done") != std::string::npos);
  CHECK(b->logged("cluster key") == 0);
  CHECK(b->logged("[warning] no link") == 1);
}

TEST_CASE("of a link that is down the newest reason is told, at both ends") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.membership.suspicion_mult = 10'000;
  const auto a = Node::started(loop, keys, options);
  options.peers = {a->overlay->address()};
  options.incarnation = 2;
  auto b = Node::started(loop, keys, options);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  b->overlay.reset();
  run_until(loop, [&] { return a->count("down", *b) == 1; });
  // Another daemon with the same key, started earlier.
  options.incarnation = 1;
  const auto earlier = Node::started(loop, keys, options, b->identity);
  run_until(loop, [&] {
    return a->link(*b).last_error.find("turned away here: another daemon with this node's key") != std::string::npos;
  });
  // However often it comes, the log tells it once.
  run_until(loop, [&] { return a->overlay->counters().admissions_refused >= 5; });
  CHECK(a->logged("[warning] turned away a node at 127.0.0.1: another daemon with this node's key") == 1);

  const auto c = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*c) && c->linked(*a); });
  a->overlay->set_denied({c->id});
  run_until(loop, [&] { return c->link(*a).last_error.find("denies this node") != std::string::npos; });
}

TEST_CASE("a program that takes our port for another's is told once for its host, and counted") {
  asio::io_context loop;
  const auto a = Node::started(loop, new_keys());
  const auto address = *parse_address(a->overlay->address(), AddressUse::dial);
  const asio::ip::tcp::endpoint port(asio::ip::make_address(address.host), address.port);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    asio::ip::tcp::socket client(loop);
    client.connect(port);
    // The first program speaks at once, and its connection may be gone before its address is read.
    if (number > 1) holds_within(loop, std::chrono::milliseconds(100), [] { return false; });
    asio::write(client, asio::buffer(std::string("GET / HTTP/1.1\r\nHost: here\r\n\r\n")));
    run_until(loop, [&] { return a->overlay->counters().handshakes_failed == number; });
  }
  CHECK(a->logged("[warning] a program at an address that could not be read in time takes our port") <= 1);
  CHECK(a->logged("[warning] a program at 127.0.0.1 takes our port for another service's") == 1);
  CHECK(a->overlay->counters().admissions_refused == 0);
  // A program that only checks whether the port answers is not counted.
  asio::ip::tcp::socket(loop).connect(port);
  holds_within(loop, std::chrono::milliseconds(200), [] { return false; });
  CHECK(a->overlay->counters().handshakes_failed == 3);
}

TEST_CASE("while the key is changed, nodes with overlapping rings find each other") {
  asio::io_context loop;
  const ClusterKey old_key = ClusterKey::generate();
  const ClusterKey new_key = ClusterKey::generate();
  const auto a = Node::started(loop, ClusterKeys({old_key, new_key}));
  const auto b = Node::started(loop, ClusterKeys({new_key, old_key}), with_peers({a->overlay->address()}));
  const auto c = Node::started(loop, ClusterKeys({new_key}), with_peers({b->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a) && b->linked(*c); });
  // a listens with the old key, which c does not hold; but a can dial c.
  run_until(loop, [&] { return a->linked(*c) && c->linked(*a); });
}

TEST_CASE("a denied node gets no link, whoever dials") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const Identity unwanted = Identity::generate();
  OverlaySettings options = quick_options();
  options.denied = {unwanted.node};
  const auto a = Node::started(loop, keys, options);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}), unwanted);
  run_until(loop, [&] { return b->overlay->counters().attempts_failed >= 2; });
  CHECK(b->logged("denies this node") >= 1);
  CHECK(a->overlay->counters().admissions_refused >= 2);
  CHECK(a->logged("turned away node " + unwanted.node.brief() + " at 127.0.0.1: it is denied") == 1);
  REQUIRE(a->overlay->set_peers({b->overlay->address()}));
  run_until(loop, [&] { return a->overlay->counters().attempts_failed >= 2; });
  CHECK(a->logged("is denied here") == 1);
  CHECK(a->events.empty());
  CHECK(b->events.empty());
}

TEST_CASE("a node denied while linked is put out") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  a->overlay->set_denied({b->id});
  CHECK(a->count("down", *b) == 0);  // events come from the loop only
  run_until(loop, [&] { return a->count("down", *b) == 1 && b->count("down", *a) == 1; });
  const auto attempts = b->overlay->counters().attempts;
  run_until(loop, [&] { return b->overlay->counters().attempts > attempts + 2; });
  CHECK(a->count("up", *b) == 1);
  a->overlay->set_denied({});
  run_until(loop, [&] { return a->count("up", *b) == 2; });
}

TEST_CASE("a port in use is a clear error") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = quick_options();
  options.listen = a->overlay->address();
  Node b(loop, keys, options);
  const auto started = b.overlay->start();
  REQUIRE_FALSE(started);
  CHECK(started.error().find("in use") != std::string::npos);
  CHECK(started.error().find(options.listen) != std::string::npos);
}

TEST_CASE("options that cannot be are refused with a reason") {
  asio::io_context loop;
  const auto error_of = [&](auto change) {
    OverlaySettings options = quick_options();
    change(options);
    Node node(loop, new_keys(), options);
    const auto started = node.overlay->start();
    return started ? std::string() : started.error();
  };
  CHECK(error_of([](auto& o) { o.listen = "nonsense"; }).find("listen address 'nonsense'") == 0);
  CHECK(error_of([](auto& o) { o.listen = "tcp://192.0.2.1:0"; }).find("no such address") != std::string::npos);
  CHECK(error_of([](auto& o) { o.peers = {"tcp://host"}; }).find("peer address") == 0);
  CHECK(error_of([](auto& o) { o.advertise = "?"; }).find("advertised address") == 0);
  CHECK(error_of([](auto& o) { o.name = "a\nb"; }).find("name") != std::string::npos);
  const std::string unknown = error_of([](auto& o) { o.interface = "no-such-one"; });
  CHECK(unknown.find("network interface 'no-such-one': this machine has no such interface; it has ") == 0);
  CHECK(unknown.find("lo") != std::string::npos);
  CHECK(error_of([](auto& o) { o.interface = std::string(200, 'x'); }).find("no such interface; it has ") !=
        std::string::npos);
}

TEST_CASE("a node that is held to a network interface has links through that one only") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings inside = quick_options();
  inside.interface = "lo";
  const auto a = Node::started(loop, keys, inside);
  inside.peers = {a->overlay->address()};
  const auto b = Node::started(loop, keys, inside);
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });

  const std::string other = another_interface();
  if (other.empty()) {
    WARN("skipped in part: this machine has no network interface but lo");
    return;
  }
  OverlaySettings outside = with_peers({a->overlay->address()});
  outside.interface = other;
  const auto c = Node::started(loop, keys, outside);
  const auto d = Node::started(loop, keys, with_peers({c->overlay->address()}));
  const auto given_up = [](const Node& node) {
    const auto links = node.overlay->links();
    return !links.empty() && !links.front().up && !links.front().last_error.empty();
  };
  run_until(loop, [&] { return given_up(*c) && given_up(*d); });
}

TEST_CASE("garbage on the port and plain ZeroMQ clients do no harm") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  gossip::Random random(3);
  std::vector<asio::ip::tcp::socket> sockets;
  for (int i = 0; i < 40; ++i) {
    asio::ip::tcp::socket socket(loop);
    socket.connect(endpoint_of(*a));
    std::string noise(random.below(5000), '\0');
    for (char& c : noise)
      c = static_cast<char>(random.next());
    if (i % 4 == 0) noise = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    // A ZMTP 3 greeting that asks for CURVE, then noise.
    if (i % 4 == 1)
      noise = std::string(
                  "\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00"
                  "CURVE",
                  17) +
              std::string(47, '\0') + noise;
    asio::error_code error;
    asio::write(socket, asio::buffer(noise), error);
    sockets.push_back(std::move(socket));
  }
  zmq::context_t context;
  zmq::socket_t plain(context, zmq::socket_type::dealer);
  plain.set(zmq::sockopt::linger, 0);
  plain.connect(a->overlay->address());
  plain.send(zmq::str_buffer("hello"), zmq::send_flags::none);

  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  const auto before = a->link(*b).traffic.messages_received;
  run_until(loop, [&] { return a->link(*b).traffic.messages_received > before + 10; });
  CHECK(a->events.size() == 1);
  CHECK(a->messages.empty());
}

TEST_CASE("a link that is being made hears nothing but its welcomes, whatever else ends at the port") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  Insider insider(*a, keys);
  insider.send(encode(ControlMessage(insider.hello(keys, Channel::control))));
  run_until(loop, [&] { return insider.receive().has_value(); });
  {
    asio::ip::tcp::socket stranger(loop);
    stranger.connect(endpoint_of(*a));
  }
  const auto before = b->link(*a).traffic.messages_received;
  run_until(loop, [&] { return b->link(*a).traffic.messages_received > before + 10; });
  CHECK_FALSE(insider.receive());
}

TEST_CASE("from a connection that is not admitted nothing but a hello is read") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  Insider insider(*a, keys);
  insider.send(encode(Message(JobQuery{{1, 2}})));
  insider.send(encode(ControlMessage(Heartbeat{})));
  insider.send_raw(std::vector<Bytes>(9, Bytes::adopt(std::vector<std::uint8_t>(8, 1))));
  Insider another(*a, keys);
  another.send_raw({Bytes::adopt(std::vector<std::uint8_t>(max_hello_bytes + 1, 7))});
  run_until(loop, [&] { return a->overlay->counters().strangers == 4; });
  CHECK(a->messages.empty());
  CHECK(a->overlay->links().empty());
}

TEST_CASE("hellos with something wrong are refused with a reason") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  Insider insider(*a, keys);
  const auto answer = [&](auto change, bool prove_again) {
    Hello hello = insider.hello(keys, Channel::control);
    change(hello);
    if (prove_again) hello.proof = hello_proof(keys.first(), hello);
    insider.send(encode(ControlMessage(hello)));
    const auto rejected = insider.rejection(loop);
    REQUIRE(rejected);
    return rejected->reason;
  };
  CHECK(answer([](Hello& h) { h.proof[0] ^= 1; }, false) == RejectReason::bad_proof);
  CHECK(answer([](Hello& h) { h.name = "another"; }, false) == RejectReason::bad_proof);
  CHECK(answer([](Hello& h) { h.version_low = h.version_high = 99; }, true) == RejectReason::version);
  // The hello has another node's key and a correct proof of the cluster key. The connection belongs to the sender's own
  // key.
  CHECK(answer([](Hello& h) { h.public_key = Identity::generate().keys.public_key; }, true) == RejectReason::bad_proof);
  CHECK(answer([](Hello& h) { h.channel = Channel::bulk; }, true) == RejectReason::duplicate);
  CHECK(a->overlay->counters().admissions_refused == 4);
  CHECK(a->overlay->links().empty());
}

TEST_CASE("a connection has the name that the doorkeeper gives it, not the one that its other end claims") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  // ZeroMQ ignores all but the first of connections with the same name.
  std::vector<std::unique_ptr<Insider>> insiders;
  for (int i = 0; i < 8; ++i) {
    insiders.push_back(std::make_unique<Insider>(*a, keys, "the same"));
    insiders.back()->send(encode(ControlMessage(insiders.back()->hello(keys, Channel::bulk))));
  }
  std::size_t answered = 0;
  run_until(loop, [&] {
    answered +=
        static_cast<std::size_t>(std::ranges::count_if(insiders, [](auto& one) { return one->receive().has_value(); }));
    return answered == insiders.size();
  });
}

TEST_CASE("a connection that is not admitted in time is closed, and links stay") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.stranger_patience_us = 300 * us_per_ms;
  const auto a = Node::started(loop, keys, options);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
  const auto links_up = a->overlay->counters().links_up;
  asio::ip::tcp::socket silent(loop);
  silent.connect(endpoint_of(*a));
  Insider secured(*a, keys);
  run_until(loop, [&] { return a->overlay->counters().strangers_closed >= 2; });
  asio::error_code error;
  char byte = 0;
  silent.non_blocking(true);
  run_until(loop, [&] {
    (void)silent.read_some(asio::buffer(&byte, 1), error);
    return error == asio::error::eof || error == asio::error::connection_reset;
  });
  // A connection that was put out has as long to read the reason.
  Insider put_out(*a, keys);
  put_out.send(encode(ControlMessage(put_out.hello(keys, Channel::control))));
  run_until(loop, [&] { return put_out.receive().has_value(); });
  const auto before = a->overlay->counters().strangers_closed;
  for (std::uint32_t i = 0; i <= max_malformed_messages; ++i)
    put_out.send_raw({Bytes::adopt(std::vector<std::uint8_t>(8, 1))});
  CHECK(put_out.rejection(loop)->reason == RejectReason::misbehaved);
  run_until(loop, [&] { return a->overlay->counters().strangers_closed > before; });
  CHECK(a->overlay->counters().links_up == links_up);
  CHECK(a->linked(*b));
  CHECK(a->overlay->counters().links_lost == 0);
}

TEST_CASE("who floods the port closes his own connections, and others come in") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.max_strangers = 8;
  const auto a = Node::started(loop, keys, options);
  std::vector<asio::ip::tcp::socket> flood;
  for (int i = 0; i < 40; ++i) {
    flood.emplace_back(loop);
    flood.back().connect(endpoint_of(*a));
  }
  run_until(loop, [&] { return a->overlay->counters().strangers_closed >= 32; });
  CHECK(a->overlay->counters().strangers_closed == 32);
  CHECK(a->logged("too many are not admitted") > 0);
  // A reset tells them that no key was refused.
  long resets = 0;
  for (auto& connection : flood) {
    std::array<char, 64> heard{};
    asio::error_code ended;
    connection.non_blocking(true);
    while (!ended)
      (void)connection.read_some(asio::buffer(heard), ended);
    resets += ended == asio::error::connection_reset ? 1 : 0;
  }
  CHECK(resets == 32);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
}

TEST_CASE("what connects while the loop is busy is not read before the loop has seen it") {
  asio::io_context loop;
  const auto a = Node::started(loop, new_keys());
  asio::ip::tcp::socket stranger(loop);
  stranger.connect(endpoint_of(*a));
  std::string heard(10, 0);
  asio::read(stranger, asio::buffer(heard));  // ZeroMQ begins its greeting, unasked
  std::string greeting(64, 0);
  greeting[0] = '\xff';
  greeting[9] = '\x7f';
  greeting[10] = 3;
  greeting.replace(12, 4, "NULL");  // at which ZeroMQ hangs up
  asio::write(stranger, asio::buffer(greeting));
  stranger.non_blocking(true);
  const auto has_ended = [&] {
    asio::error_code error;
    while (!error)
      (void)stranger.read_some(asio::buffer(heard), error);
    return error != asio::error::would_block;
  };
  for (int i = 0; i < 50; ++i) {
    REQUIRE_FALSE(has_ended());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  run_until(loop, has_ended);
}

TEST_CASE("hellos of one key are looked at only so often, and others come in meanwhile") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  constexpr std::size_t insiders_count = 8;
  constexpr std::uint32_t hellos_of_connection = 4;  // more would be more than a stranger may send
  std::vector<std::unique_ptr<Insider>> insiders;
  for (std::size_t each = 0; each < insiders_count; ++each) {
    const Identity identity = Identity::generate();
    for (std::uint32_t i = 0; i < hello_burst + 4; ++i) {
      if (i % hellos_of_connection == 0) insiders.push_back(std::make_unique<Insider>(*a, keys, "", identity));
      Hello hello = insiders.back()->hello(keys, Channel::control);
      hello.proof[0] ^= 1;
      insiders.back()->send(encode(ControlMessage(hello)));
    }
  }
  run_until(loop, [&] {
    const auto counters = a->overlay->counters();
    return counters.admissions_refused + counters.hellos_throttled == insiders_count * (hello_burst + 4);
  });
  CHECK(a->overlay->counters().hellos_throttled > 0);
  CHECK(a->logged("turned away") <= 30);
  const auto b = Node::started(loop, keys, with_peers({a->overlay->address()}));
  run_until(loop, [&] { return a->linked(*b) && b->linked(*a); });
}

TEST_CASE("what each may ask is counted for itself, for the latest of them") {
  ThrottleForEach throttles(2, 1, 3);
  CHECK((throttles.take("a", 0) && throttles.take("a", 0)));
  CHECK_FALSE(throttles.take("a", 0));
  CHECK(throttles.take("b", 1));
  CHECK(throttles.take("a", us_per_s));
  CHECK(throttles.take("c", us_per_s));
  CHECK(throttles.take("d", us_per_s));  // b was used longest ago, and is forgotten
  CHECK_FALSE(throttles.take("a", us_per_s));
  CHECK((throttles.take("b", us_per_s) && throttles.take("b", us_per_s)));
}

TEST_CASE("an admitted node that sends nonsense is put out and kept out") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  Insider control(*a, keys);
  control.send(encode(ControlMessage(control.hello(keys, Channel::control))));
  run_until(loop, [&] { return control.receive().has_value(); });
  for (std::uint32_t i = 0; i <= max_malformed_messages; ++i) {
    control.send_raw({Bytes::adopt(std::vector<std::uint8_t>(16, 0xee))});
  }
  const auto rejected = control.rejection(loop);
  REQUIRE(rejected);
  CHECK(rejected->reason == RejectReason::misbehaved);
  CHECK(a->overlay->counters().malformed == max_malformed_messages + 1);
  control.send(encode(ControlMessage(control.hello(keys, Channel::control))));
  const auto again = control.rejection(loop);
  REQUIRE(again);
  CHECK(again->reason == RejectReason::misbehaved);
}

TEST_CASE("a newer node is spoken to in the version both know, and what is not understood of it is counted") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  Insider newer(*a, keys);
  Hello hello = newer.hello(keys, Channel::control);
  hello.version_high = 9;
  hello.features = ~std::uint64_t{0};
  hello.proof = hello_proof(keys.first(), hello);
  newer.send(encode(ControlMessage(hello)));
  std::optional<Packet> packet;
  run_until(loop, [&] { return (packet = newer.receive()).has_value(); });
  const auto& welcome = std::get<Welcome>(std::get<ControlMessage>(*packet));
  CHECK(welcome.version == protocol_version_high);
  CHECK(welcome.features == features_of(BulkProtection::sealed));
  std::vector<std::uint8_t> future(24);
  future[4] = 2;     // the segment has two words
  future[12] = 1;    // the root: a struct of one word of data
  future[16] = 250;  // the union's tag
  for (std::uint32_t i = 0; i < 2 * max_malformed_messages; ++i)
    newer.send_raw({Bytes::adopt(std::vector(future)), Bytes::adopt(std::vector<std::uint8_t>(100))});
  run_until(loop, [&] { return a->overlay->counters().unknown == 2 * max_malformed_messages; });
  CHECK(a->overlay->counters().malformed == 0);
}

TEST_CASE("links are bounded") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  OverlaySettings options = quick_options();
  options.max_links = 2;
  const auto a = Node::started(loop, keys, options);
  std::vector<std::unique_ptr<Insider>> insiders;
  std::size_t refused = 0;
  for (int i = 0; i < 4; ++i) {
    insiders.push_back(std::make_unique<Insider>(*a, keys));
    insiders.back()->send(encode(ControlMessage(insiders.back()->hello(keys, Channel::control))));
    const auto rejected = insiders.back()->rejection(loop);
    refused += rejected && rejected->reason == RejectReason::full;
  }
  CHECK(refused == 2);
}

TEST_CASE("a node key used by two processes is noticed") {
  asio::io_context loop;
  const ClusterKeys keys = new_keys();
  const auto a = Node::started(loop, keys);
  OverlaySettings options = with_peers({a->overlay->address()});
  options.incarnation = 2;
  const auto b = Node::started(loop, keys, options, a->identity);
  run_until(loop, [&] { return a->logged("another process uses this node's key") >= 1; });
  CHECK(a->events.empty());
}
