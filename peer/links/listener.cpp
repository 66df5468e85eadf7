#include "peer/links/listener.hpp"

#include <linux/filter.h>
#include <linux/socket.h>
#include <malloc.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "gossip/check.hpp"
#include "peer/admission/admission.hpp"
#include "peer/links/dialling.hpp"
#include "peer/links/interface.hpp"
#include "peer/links/stranger_gate.hpp"
#include "peer/links/tcp_connection.hpp"

namespace gossamer::peer {
namespace {

constexpr const char* doorkeeper_endpoint = "inproc://zeromq.zap.01";  // the name RFC 27 gives it
constexpr const char* events_endpoint = "inproc://listener-events";
constexpr const char* zap_domain = "gossamer";
/// A request has the name of who asks, an empty frame, version, request id, domain, address, routing id, mechanism;
/// then a key, or a name and a password.
constexpr std::size_t zap_frames_curve = 9;
constexpr std::size_t zap_frames_plain = 10;
/// The codes of the doorkeeper's answers (RFC 27).
constexpr const char* code_welcome = "200";
constexpr const char* code_denied = "400";
/// How long the doorkeeper waits before it answers. ZeroMQ looks for the answer right after it has asked, and only then
/// reads the routing id that the other end claims, which would replace the one in an early answer. A later answer
/// replaces the claim.
constexpr std::chrono::milliseconds doorkeeper_pause{2};
constexpr int handshake_timeout_ms = 5000;
constexpr int connection_backlog = 256;
constexpr int unanswered_keepalives = 2;
constexpr std::size_t routing_id_bytes = 16;
/// ZeroMQ accepts no more connections until the loop has seen those before, beside a thousand. Each takes 15 KiB.
constexpr int most_waiting_events = 1;
/// How often the bytes that strangers have sent are checked.
constexpr std::chrono::milliseconds strangers_pause{5};
/// How long after the last stranger was closed the memory that strangers had is given back to the system.
constexpr TimeUs trim_pause_us = 5 * us_per_s;
/// The most sealed connections that exist or are expected.
constexpr std::size_t max_sealed = 4 * max_links;

std::string property(zmq::message_t& frame, const char* name) {
  const char* value = zmq_msg_gets(frame.handle(), name);
  return value == nullptr ? std::string{} : std::string(value);
}

/// Makes the kernel probe the other end of an idle connection, and close the connection if nothing answers: it sends
/// two probes after the silence, one silence apart. Sent data that are not acknowledged for as long close the
/// connection, too. ZeroMQ alone would never close an idle connection.
void close_when_silent(zmq::socket_t& socket, int silence_ms) {
  const int silence_s = std::max(1, (silence_ms + 999) / 1000);
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, silence_s);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, silence_s);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, unanswered_keepalives);
  socket.set(zmq::sockopt::tcp_maxrt, (1 + unanswered_keepalives) * silence_s * 1000);
}

/// Draws a routing id. It never equals one that ZeroMQ makes up, since those begin with a zero byte.
std::string new_routing_id() {
  const Nonce random = random_nonce();
  std::string id(routing_id_bytes, 'g');
  std::memcpy(id.data() + 1, random.data(), routing_id_bytes - 1);
  return id;
}

/// The metadata of the doorkeeper's answer, in ZMTP's form. ZeroMQ gives the connection the routing id in it, whatever
/// the other end has claimed.
std::string metadata_naming(const std::string& routing_id) {
  const std::string name = "Identity";
  const auto size = static_cast<char>(routing_id.size());
  return std::string(1, static_cast<char>(name.size())) + name + std::string(3, '\0') + size + routing_id;
}

/// ZeroMQ numbers connections that claim no routing id, beginning with rand(), which it never seeds. The doorkeeper
/// names all connections. The seed is there so that nobody could guess the number of one that it missed.
void seed_zeromq() {
  const Nonce random = random_nonce();
  unsigned int seed = 0;
  std::memcpy(&seed, random.data(), sizeof seed);
  std::srand(seed);
}

/// The address of a TCP socket's own end, or of the other one.
std::optional<Connections::End> end_of(int descriptor, decltype(&::getpeername) which) {
  asio::ip::tcp::endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (which(descriptor, endpoint.data(), &size) != 0) return std::nullopt;
  const int family = endpoint.data()->sa_family;
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  endpoint.resize(size);
  return Connections::End{endpoint.address().to_string(), endpoint.port()};
}

/// Resolves a host to bind to.
std::expected<std::string, std::string> resolve(asio::io_context& loop, const Address& address) {
  asio::error_code error;
  asio::ip::tcp::resolver resolver(loop);
  const auto results = resolver.resolve(address.host, std::to_string(address.port), error);
  if (error || results.empty()) {
    return std::unexpected("cannot listen at " + address.text() + ": no address is known for host '" + address.host +
                           "'");
  }
  return results.begin()->endpoint().address().to_string();
}

/// Makes a TCP socket that listens at `endpoint`. The error is one of errno.
std::expected<int, int> listening_socket(const asio::ip::tcp::endpoint& endpoint, const std::string& interface,
                                         bool beside_another) {
  const int descriptor = ::socket(endpoint.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return std::unexpected(errno);
  const int on = 1;
  const int off = 0;
  const auto set = [&](int level, int name, const int& value) {
    return ::setsockopt(descriptor, level, name, &value, sizeof value) == 0;
  };
  guard_connections_of(descriptor);
  const bool ready = set(SOL_SOCKET, SO_REUSEADDR, on) && (!beside_another || set(SOL_SOCKET, SO_REUSEPORT, on)) &&
                     (!endpoint.address().is_v6() || set(IPPROTO_IPV6, IPV6_V6ONLY, off)) &&
                     hold_to_interface(descriptor, interface) == 0 &&
                     ::bind(descriptor, endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0 &&
                     ::listen(descriptor, connection_backlog) == 0;
  if (ready) return descriptor;
  const int error = errno;
  ::close(descriptor);
  return std::unexpected(error);
}

std::string bind_error(const Address& address, int error) {
  const std::string start = "cannot listen at " + address.text() + ": ";
  switch (error) {
    case EADDRINUSE:
      return start + "the port is in use by another program; stop that or choose another listen address";
    case EADDRNOTAVAIL:
    case ENODEV:
      return start + "this machine has no such address; choose one of its own, or 0.0.0.0 for all";
    case EACCES:
      return start + "this user may not use that port; choose one above 1023";
    default:
      return start + zmq_strerror(error);
  }
}

}  // namespace

std::expected<void, std::string> Listener::start(const Address& address, const ClusterKey& key, int high_water_messages,
                                                 bool takes_sealed) {
  const auto numeric = resolve(loop_, address);
  if (!numeric) return std::unexpected(numeric.error());
  numeric_host_ = *numeric;
  const auto descriptor = listening_socket({asio::ip::make_address(numeric_host_), address.port}, interface_, false);
  if (!descriptor) return std::unexpected(bind_error(address, descriptor.error()));
  seed_zeromq();
  try {
    start_doorkeeper();  // ZeroMQ must find it before the first connection comes
    router_ = std::make_shared<PolledSocket>(loop_, context_, zmq::socket_type::router);
    zmq::socket_t& socket = router_->socket();
    socket.set(zmq::sockopt::zap_domain, zap_domain);
    socket.set(zmq::sockopt::router_mandatory, true);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(max_wire_frame_bytes));
    socket.set(zmq::sockopt::sndhwm, high_water_messages);
    socket.set(zmq::sockopt::rcvhwm, high_water_messages);
    socket.set(zmq::sockopt::handshake_ivl, handshake_timeout_ms);
    close_when_silent(socket, silence_ms_);
    events_ = watch_socket(
        loop_, context_, socket, events_endpoint, ZMQ_EVENT_ALL, [this](SocketEvent event) { note(event); },
        most_waiting_events);
    bind(*descriptor, key);
    const auto bound = parse_address(socket.get(zmq::sockopt::last_endpoint), AddressUse::listen);
    if (!bound) return std::unexpected("cannot tell where it listens: " + bound.error());
    address_ = {address.host, bound->port};
    if (takes_sealed) bind_sealed();
  } catch (const zmq::error_t& error) {
    if (bound_.empty()) ::close(*descriptor);
    close(0);
    return std::unexpected(bind_error(address, error.num()));
  }
  // A message has its routing id, its header, its payload, and where it is sealed a trailer.
  router_->start(3 + max_payload_frames, [this](Received&& received) { receive(std::move(received)); });
  return {};
}

void Listener::bind(int descriptor, const ClusterKey& key) {
  zmq::socket_t& socket = router_->socket();
  const KeyPair keys = key.listening_keys();
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey,
             zmq::const_buffer(keys.secret_key.bytes().data(), keys.secret_key.bytes().size()));
  hand_over(descriptor);
  bound_.push_back({key.fingerprint(), descriptor});
}

/// Hands a listening socket to ZeroMQ, which tells an event of it.
void Listener::hand_over(int descriptor) {
  zmq::socket_t& socket = router_->socket();
  socket.set(zmq::sockopt::use_fd, descriptor);
  const Address target{numeric_host_, 1};  // ZeroMQ only looks at its form, and listens at the descriptor
  if (target.is_ipv6()) socket.set(zmq::sockopt::ipv6, true);
  events_->receive_while([&] { uninterrupted([&] { socket.bind(target.text()); }); });
}

/// Makes another listening socket on the port. The port is shared only from now on, so that start() fails if another
/// program uses it. The error is one of errno.
std::expected<int, int> Listener::socket_beside() {
  const int on = 1;
  if (::setsockopt(bound_.front().descriptor, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)
    return std::unexpected(errno);
  return listening_socket({asio::ip::make_address(numeric_host_), address_.port}, interface_, true);
}

/// Listens for sealed connections, too, if the system can tell them apart. ZeroMQ looks at its options when it binds.
void Listener::bind_sealed() {
  const auto descriptor = socket_beside();
  if (!descriptor) return;
  sealed_index_ = bound_.size();
  if (steer(*descriptor, steered_to_) != 0) {
    ::close(*descriptor);  // an unused socket would get every second connection
    sealed_index_.reset();
    return;
  }
  bound_.push_back({std::nullopt, *descriptor});
  router_->socket().set(zmq::sockopt::plain_server, true);
  hand_over(*descriptor);
}

std::expected<void, std::string> Listener::listen_with(const ClusterKey& key) {
  GOSSAMER_CHECK(router_ && router_->is_open() && !bound_.empty());
  const auto failed = [](int error) {
    return std::unexpected(std::string("cannot listen with another key: ") + zmq_strerror(error));
  };
  const auto known = std::ranges::find(bound_, key.fingerprint(), &Bound::key);
  if (known != bound_.end()) {
    const auto index = static_cast<std::size_t>(known - bound_.begin());
    if (index == steered_to_) return {};
    if (const int error = steer(bound_.back().descriptor, index); error != 0) return failed(error);
    steered_to_ = index;
    return {};
  }
  if (bound_.size() == max_listening_keys + (takes_sealed() ? 1 : 0)) {
    return std::unexpected("cannot listen with another key: this process has listened with " +
                           std::to_string(max_listening_keys) + " of them; restart it");
  }
  const auto descriptor = socket_beside();
  if (!descriptor) return failed(descriptor.error());
  const std::size_t index = bound_.size();
  int error = steer(*descriptor, index);
  try {
    if (error == 0) bind(*descriptor, key);
  } catch (const zmq::error_t& unbound) {
    error = unbound.num();
    (void)steer(*descriptor, steered_to_);
  }
  if (error != 0) {
    ::close(*descriptor);
    return failed(error);
  }
  steered_to_ = index;
  return {};
}

/// Chooses the bound socket that gets new connections, except those with the mark of sealed bulk. The mark is in the
/// first bytes of IP's header, behind the version. `descriptor`: any socket on the port but the first. Returns 0 or the
/// error.
int Listener::steer(int descriptor, std::size_t index) const {
  const auto others = static_cast<std::uint32_t>(index);
  const auto sealed = static_cast<std::uint32_t>(sealed_index_.value_or(index));
  const auto header = static_cast<std::uint32_t>(SKF_NET_OFF);
  sock_filter choice[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, header),      // 0: the version, before four other bits
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),          // 1
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 0, 2),    // 2: IPv6 goes on at 5
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, header + 1),  // 3: the type of service
      BPF_JUMP(BPF_JMP | BPF_JA, 2, 0, 0),             // 4: goes on at 7
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, header),      // 5: the traffic class lies across two bytes
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),          // 6
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xfc),       // 7: without the bits of ECN
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sealed_bulk_mark, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, sealed),
      BPF_STMT(BPF_RET | BPF_K, others),
  };
  const sock_fprog program{std::size(choice), choice};
  const int result = ::setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program);
  return result == 0 ? 0 : errno;
}

void Listener::answer_all() {
  for (const Answer& frames : std::exchange(answers_, {})) {
    try {
      for (std::size_t i = 0; i < frames.size(); ++i) {
        zmq::message_t part(frames[i]);
        const auto flags = i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
        (void)uninterrupted([&] { return doorkeeper_->socket().send(part, flags); });
      }
    } catch (const zmq::error_t&) {
      // The handshake that asked is gone; ZeroMQ closes that connection by its own timeout.
    }
  }
}

void Listener::start_doorkeeper() {
  doorkeeper_ = std::make_shared<PolledSocket>(loop_, context_, zmq::socket_type::router);
  uninterrupted([this] { doorkeeper_->socket().bind(doorkeeper_endpoint); });
  doorkeeper_->start(zap_frames_plain, [this](Received&& request) { ask_doorkeeper(std::move(request)); });
}

void Listener::ask_doorkeeper(Received&& request) {
  if (request.frames.size() < zap_frames_curve || request.too_many_frames) return;  // requests of ZeroMQ are whole
  const auto text = [&](std::size_t frame) { return request.frames[frame].to_string(); };
  std::string user_id;
  std::string metadata;
  const char* code = code_denied;
  const std::string mechanism = text(7);
  PublicKey key{};
  if (mechanism == "PLAIN" && request.frames.size() == zap_frames_plain) {
    user_id = text(8);
    if (takes_ticket(user_id, text(9))) code = code_welcome;
  } else if (mechanism == "CURVE" && request.frames[8].size() == key.size()) {
    std::copy_n(static_cast<const std::uint8_t*>(request.frames[8].data()), key.size(), key.begin());
    if (const NodeId node = node_id(key); denied_.contains(node)) {
      handlers_.denied(node, text(5));
    } else {
      code = code_welcome;
      user_id = hex(key);
      metadata = metadata_naming(new_routing_id());
    }
  }
  answers_.push_back({text(0), "", "1.0", text(3), code, "", user_id, metadata});
  if (answers_.size() > 1) return;
  doorkeeper_timer_.expires_after(doorkeeper_pause);
  doorkeeper_timer_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (!error && !alive.expired()) answer_all();
  });
}

void Listener::receive(Received&& received) {
  if (received.frames.size() < 2) return;  // the message has nothing but a routing id
  Arrival arrival;
  arrival.routing_id = received.frames[0].to_string();
  arrival.descriptor = zmq_msg_get(received.frames[1].handle(), ZMQ_SRCFD);
  arrival.user_id = property(received.frames[1], "User-Id");
  arrival.host = property(received.frames[1], "Peer-Address");
  if (!connections_.has_spoken(arrival.descriptor)) {
    if (const auto end = end_of(arrival.descriptor, &::getpeername)) {
      connections_.spoke(arrival.descriptor, *end, handlers_.now());
      --secured_and_silent_;
    }
  }
  const auto sealed = sealed_.find(arrival.routing_id);
  if (sealed != sealed_.end() && arrival.routing_id == sealed_routing_id(arrival.user_id)) {
    arrival.user_id = sealed->second.user_id;
    sealed->second.end.open(std::move(received), 1, [this, arrival](Received&& opened, bool good) mutable {
      arrival.damaged = !good;
      hand_on(std::move(arrival), std::move(opened));
    });
    return;
  }
  hand_on(std::move(arrival), std::move(received));
}

void Listener::hand_on(Arrival&& arrival, Received&& received) {
  arrival.delivery = delivery_of(std::move(received), 1);
  handlers_.arrived(std::move(arrival));
}

void Listener::note(SocketEvent event) {
  const int descriptor = static_cast<int>(event.value);  // only some kinds of event have one
  if (event.kind == ZMQ_EVENT_ACCEPTED) {
    if (auto end = end_of(descriptor, &::getpeername)) {
      const auto closing = connections_.opened(descriptor, std::move(*end), handlers_.now());
      if (closing) hang_up(*closing);
      if (!closing || closing->descriptor != descriptor) let_handshake(descriptor);
    } else {
      connections_.had_ended(descriptor, handlers_.now());
    }
    if (!watches_strangers_) watch_strangers();
  } else if (event.kind == ZMQ_EVENT_DISCONNECTED) {
    note_end(descriptor);
  } else if (event.kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
    ++secured_and_silent_;
  } else if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
    const bool has_curve = event.value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC;
    note_failure(has_curve ? HandshakeFailure::other_key : HandshakeFailure::unencrypted);
  } else if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
    note_failure(HandshakeFailure::gave_up);
  }
}

void Listener::note_failure(HandshakeFailure why) {
  failed_ = {why, connections_.last_order()};
}

/// ZeroMQ tells that a handshake has failed without naming the connection, and right after that the end of this
/// connection, with its descriptor. If a connection does not begin with the signature of ZeroMQ's protocol, only its
/// end is told. A breach of the protocol after the handshake goes by the same name, and its connection ends late, or
/// when it is silent for too long; it must not be held against one that has come meanwhile.
void Listener::note_end(int descriptor) {
  const auto ended = connections_.closed(descriptor);
  std::optional<HandshakeFailure> handshake;
  if (failed_ && (!ended || ended->order <= failed_->last_order)) handshake = std::exchange(failed_, std::nullopt)->why;
  if (ended && ended->admitted) {
    read_rest_soon();  // before another turn ends the link
    return handlers_.lost_connection();
  }
  if (ended && ended->spoke) return;
  if (!ended || handshake == HandshakeFailure::gave_up) return;
  if (handshake) return handlers_.handshake_failed(ended->end.host, *handshake);
  if (secured_and_silent_ > 0) {
    --secured_and_silent_;  // this may be one of those silent connections
  } else {
    handlers_.handshake_failed(ended->end.host, HandshakeFailure::other_protocol);
  }
}

void Listener::admit(const Arrival& arrival) {
  if (const auto end = end_of(arrival.descriptor, &::getpeername)) {
    connections_.admit(arrival.descriptor, *end, arrival.routing_id);
    let_all(arrival.descriptor);
  }
  if (const auto sealed = sealed_.find(arrival.routing_id); sealed != sealed_.end()) sealed->second.admitted = true;
}

void Listener::dismiss(const std::string& routing_id) {
  connections_.dismiss(routing_id, handlers_.now());
  sealed_.erase(routing_id);
  if (!watches_strangers_) watch_strangers();
}

void Listener::tend() {
  if (trims_at_ && handlers_.now() >= *trims_at_) {
    trims_at_.reset();
    ::malloc_trim(0);
  }
  for (const Connections::Closing& closing : connections_.take_late(handlers_.now()))
    hang_up(closing);
  std::erase_if(sealed_, [now = handlers_.now()](const auto& entry) {
    return !entry.second.admitted && entry.second.expires_at < now;
  });
}

/// Closes strangers that have sent too much, and looks again soon as long as there are strangers.
void Listener::watch_strangers() {
  for (const Connections::Closing& closing : connections_.take_greedy(tcp_bytes))
    hang_up(closing);
  watches_strangers_ = connections_.strangers() > 0;
  if (!watches_strangers_) return;
  strangers_timer_.expires_after(strangers_pause);
  strangers_timer_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (!error && !alive.expired()) watch_strangers();
  });
}

/// ZeroMQ offers no way to close one connection, so the kernel is told to reset it, and ZeroMQ finds it ended. What has
/// come and was not read is discarded, and the other end learns that its key was not refused
/// (peer/links/cut_handshakes.hpp). ZeroMQ may have closed the descriptor already, its event may still wait, and the
/// number may belong to another connection by now. So the other end must still be the same.
void Listener::hang_up(const Connections::Closing& closing) {
  const auto own = end_of(closing.descriptor, &::getsockname);
  if (!own || own->port != address_.port || end_of(closing.descriptor, &::getpeername) != closing.end) return;
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(closing.descriptor, &nobody, sizeof nobody);
  trims_at_ = handlers_.now() + trim_pause_us;
  handlers_.closing(closing);
}

SendResult Listener::send(const std::string& routing_id, const Frames& frames, const QueueMeter& meter) {
  if (!router_) return SendResult::no_link;
  const auto sealed = sealed_.find(routing_id);
  if (sealed == sealed_.end()) return router_->send(routing_id, frames, meter);
  return sealed->second.end.send(frames, meter, handlers_.now());
}

void Listener::read_rest_soon() {
  asio::post(loop_, [weak = std::weak_ptr(router_)] {
    if (const auto router = weak.lock()) router->drain_rest();
  });
}

void Listener::flush(const std::string& routing_id) {
  const auto sealed = sealed_.find(routing_id);
  // If the connection has ended, the next message shows it.
  if (router_ && sealed != sealed_.end()) (void)sealed->second.end.flush();
}

// --- sealed connections ---------------------------------------------------------------------------------------------

void Listener::expect_sealed(const BulkKeys& keys, SealForm form, std::string user_id) {
  if (sealed_.size() >= max_sealed) return;  // bulk then goes through CURVE
  const std::string routing_id = sealed_routing_id(keys.ticket_name);
  const auto put = [this, routing_id](const SealedMessage& message, const QueueMeter& meter) {
    return router_ ? router_->send(routing_id, message.frames, meter, message.trailer) : SendResult::no_link;
  };
  sealed_.erase(routing_id);
  sealed_.emplace(routing_id, Sealed{.end = SealedEnd(form, keys.to_dialler, keys.to_listener, seal_threads_, put),
                                     .user_id = std::move(user_id),
                                     .password = keys.ticket_password,
                                     .expires_at = handlers_.now() + connections_.patience()});
}

bool Listener::takes_ticket(const std::string& name, const std::string& password) {
  const auto sealed = sealed_.find(sealed_routing_id(name));
  if (sealed == sealed_.end() || sealed->second.shown || password.size() != sealed->second.password.size() ||
      sodium_memcmp(password.data(), sealed->second.password.data(), password.size()) != 0) {
    return false;
  }
  sealed->second.shown = true;
  return true;
}

std::optional<SealForm> Listener::form_of(const std::string& routing_id) const {
  const auto sealed = sealed_.find(routing_id);
  return sealed == sealed_.end() ? std::nullopt : std::optional(sealed->second.end.form());
}

void Listener::close(int linger_ms) {
  if (linger_ms > 0) {
    for (auto& [_, sealed] : sealed_)
      sealed.end.flush_all();
  }
  close_watched(router_, events_, linger_ms);
  doorkeeper_timer_.cancel();
  strangers_timer_.cancel();
  alive_.reset();
  if (doorkeeper_) doorkeeper_->close(0);
}

}  // namespace gossamer::peer
