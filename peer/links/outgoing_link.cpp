#include "peer/links/outgoing_link.hpp"

#include <asio/post.hpp>

#include "peer/admission/admission.hpp"
#include "peer/links/dialling.hpp"

namespace gossamer::peer {
namespace {

constexpr std::chrono::milliseconds goodbye_grace{100};
constexpr std::size_t max_endpoints = 8;  // how many addresses of one host name are tried
/// A sealed connection is given up after connect_timeout_ms / sealing_share, or after sealing_patience times what
/// control took if that is longer. Some networks drop marked packets.
constexpr int sealing_share = 3;
constexpr double sealing_patience = 1.5;

}  // namespace

OutgoingLink::OutgoingLink(asio::io_context& loop, zmq::context_t& context, OutgoingLinkOptions options,
                           const Identity& identity, ClusterKeys keys, OutgoingLinkEvents& events)
    : loop_(loop),
      context_(context),
      options_(std::move(options)),
      identity_(identity),
      keys_(std::move(keys)),
      events_(events),
      resolver_(loop),
      retry_timer_(loop),
      goodbye_timer_(loop),
      sealing_timer_(loop),
      number_(random_number()),
      cut_(random_number()) {}

void OutgoingLink::start() {
  begun_at_ = std::chrono::steady_clock::now();
  asio::error_code not_numeric;
  (void)asio::ip::make_address(options_.address.host, not_numeric);
  if (!not_numeric) {
    asio::post(loop_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->resolved({self->options_.address});
    });
    return;
  }
  // ZeroMQ's own lookups would block the thread that moves every link's bytes.
  resolver_.async_resolve(options_.address.host, std::to_string(options_.address.port),
                          [weak = weak_from_this()](const asio::error_code& error, const auto& results) {
                            const auto self = weak.lock();
                            if (!self) return;
                            std::vector<Address> endpoints;
                            for (const auto& result : results) {
                              if (error || endpoints.size() == max_endpoints) break;
                              const auto endpoint = result.endpoint();
                              endpoints.push_back({endpoint.address().to_string(), endpoint.port()});
                            }
                            self->resolved(std::move(endpoints));
                          });
}

void OutgoingLink::resolved(std::vector<Address> endpoints) {
  if (closed_) return;
  if (endpoints.empty()) {
    fail(LinkFailure::Kind::unresolved, "no address is known for host '" + options_.address.host + "'");
    return;
  }
  endpoints_ = std::move(endpoints);
  connect(Channel::control);
}

std::optional<LinkFailure> OutgoingLink::expire() {
  if (closed_ || end(Channel::bulk).phase == Phase::welcomed) return std::nullopt;
  close(0);
  const std::string where = options_.address.text();
  const Phase phase = end(Channel::control).phase;
  if (greeting_probe_) return failure_of(greeting_probe_->heard());
  if (cut_.any()) return LinkFailure{.kind = LinkFailure::Kind::disconnected, .text = broken_handshake(where)};
  if (phase == Phase::dialled) {
    return LinkFailure{.kind = LinkFailure::Kind::unreachable, .text = "nobody answers at " + where};
  }
  if (phase == Phase::connected) return failure_of({.speaker = Greeting::Speaker::silent});
  return LinkFailure{.kind = LinkFailure::Kind::timeout,
                     .text = "the node at " + where + " took the connection and said nothing"};
}

void OutgoingLink::connect(Channel channel) {
  try {
    open_socket(channel);
  } catch (const zmq::error_t& error) {
    fail(LinkFailure::Kind::resources, std::string("cannot open a connection: ") + error.what());
    return;
  }
  say_hello(channel);
}

void OutgoingLink::open_socket(Channel channel) {
  End& opened = end(channel);
  opened = {};
  opened.socket = std::make_shared<PolledSocket>(loop_, context_, zmq::socket_type::dealer);
  zmq::socket_t& socket = opened.socket->socket();
  const bool sealed = channel == Channel::bulk && bulk_seal_;
  if (sealed) {
    use_ticket(socket, *bulk_keys_);
  } else {
    use_curve(socket, keys_.all()[key_index_].listening_keys().public_key, identity_.keys);
  }
  prepare(
      socket,
      {.to = endpoints_[endpoint_index_], .interface = options_.interface, .max_frame_bytes = max_wire_frame_bytes});
  socket.set(zmq::sockopt::connect_timeout, options_.connect_timeout_ms);
  const int high_water = options_.high_water_messages[static_cast<std::size_t>(channel)];
  socket.set(zmq::sockopt::sndhwm, high_water);
  socket.set(zmq::sockopt::rcvhwm, high_water);
  if (channel == Channel::bulk && options_.bulk_io_thread >= 0)
    socket.set(zmq::sockopt::affinity, std::uint64_t{1} << static_cast<unsigned>(options_.bulk_io_thread));

  const auto weak = weak_from_this();
  const std::string endpoint = "inproc://link-" + std::to_string(number_) + "-" + std::to_string(++sockets_opened_);
  opened.events = watch_socket(loop_, context_, socket, endpoint, dialling_events, [weak, channel](SocketEvent event) {
    if (const auto self = weak.lock()) self->note_event(channel, event);
  });
  uninterrupted([&] { socket.connect(endpoints_[endpoint_index_].text()); });
  const std::size_t trailers = sealed ? 1 : 0;
  opened.socket->start(1 + max_payload_frames + trailers, [weak, channel](Received&& received) {
    if (const auto self = weak.lock()) self->receive(channel, std::move(received));
  });
}

void OutgoingLink::say_hello(Channel channel) {
  Hello& hello = end(channel).hello;
  hello.version_low = protocol_version_low;
  hello.version_high = protocol_version_high;
  hello.public_key = identity_.keys.public_key;
  hello.incarnation = options_.incarnation;
  hello.nonce = random_nonce();
  hello.link = number_;
  hello.channel = channel;
  hello.address = options_.own_address;
  hello.name = options_.own_name;
  hello.features = options_.features;
  hello.certificate = options_.certificate;
  hello.deputies = options_.deputies;
  hello.proof = hello_proof(keys_.all()[key_index_], hello);
  // The hello waits in ZeroMQ's queue until the handshake is done.
  const auto meter = std::make_shared<std::atomic<std::size_t>>(0);
  if (send(channel, encode(ControlMessage(hello)), meter, 0) != SendResult::sent) {
    fail(LinkFailure::Kind::resources, "cannot send on a new connection");
  }
}

void OutgoingLink::receive(Channel channel, Received&& received) {
  if (closed_ || received.frames.empty()) return;
  if (channel == Channel::control || !bulk_seal_) return take(channel, delivery_of(std::move(received), 0));
  bulk_seal_->open(std::move(received), 0, [weak = weak_from_this()](Received&& opened, bool good) {
    const auto self = weak.lock();
    if (!self || self->closed_) return;
    if (good) return self->take(Channel::bulk, delivery_of(std::move(opened), 0));
    self->fail(LinkFailure::Kind::disconnected, broken_seal(self->options_.address.text()));
  });
}

void OutgoingLink::take(Channel channel, Delivery&& delivery) {
  if (channel == Channel::control && offer_due_) {
    take_offer(delivery.frames);
  } else if (end(channel).phase == Phase::welcomed) {
    events_.delivered(*this, channel, std::move(delivery));
  } else {
    receive_answer(channel, delivery.frames);
  }
}

void OutgoingLink::receive_answer(Channel channel, const Frames& frames) {
  const auto packet = decode(frames);
  const auto* control = packet ? std::get_if<ControlMessage>(&*packet) : nullptr;
  if (const auto* answer = control ? std::get_if<Welcome>(control) : nullptr) {
    welcome(channel, *answer);
  } else if (const auto* rejected = control ? std::get_if<Rejected>(control) : nullptr) {
    fail(LinkFailure::Kind::rejected, "the node at " + options_.address.text() + " turns us away: " + rejected->text,
         rejected->reason);
  } else {
    fail(LinkFailure::Kind::bad_welcome, "the node at " + options_.address.text() + " answers a hello with nonsense");
  }
}

void OutgoingLink::welcome(Channel channel, const Welcome& welcome) {
  End& greeted = end(channel);
  const bool known_version = welcome.version >= protocol_version_low && welcome.version <= protocol_version_high;
  if (!known_version || !is_welcome_proven(identity_.keys, greeted.hello, welcome)) {
    fail(LinkFailure::Kind::bad_welcome,
         "the node at " + options_.address.text() + " does not prove that it is the node it says it is");
    return;
  }
  if (channel == Channel::control) {
    welcome_ = welcome;
    greeted.reach(Phase::welcomed);
    if (!events_.introduced(*this, welcome)) return close(0);
    offer_due_ = seal_form(welcome.features & options_.features).has_value();
    return offer_due_ ? void() : connect(Channel::bulk);
  }
  if (welcome.public_key != welcome_.public_key) {
    fail(LinkFailure::Kind::bad_welcome, "two different nodes answer at " + options_.address.text());
    return;
  }
  sealing_timer_.cancel();
  greeted.reach(Phase::welcomed);
  events_.established(*this);
}

void OutgoingLink::take_offer(const Frames& frames) {
  const auto packet = decode(frames);
  const auto* control = packet ? std::get_if<ControlMessage>(&*packet) : nullptr;
  const auto* offer = control ? std::get_if<BulkOffer>(control) : nullptr;
  if (offer != nullptr) bulk_keys_ = bulk_keys(identity_.keys, end(Channel::control).hello, welcome_, *offer);
  if (!bulk_keys_) {
    fail(LinkFailure::Kind::bad_welcome, "the node at " + options_.address.text() + " offers no keys for bulk");
    return;
  }
  offer_due_ = false;
  const auto put = [this](const SealedMessage& message, const QueueMeter& meter) {
    const auto& socket = end(Channel::bulk).socket;
    return socket ? socket->send({}, message.frames, meter, message.trailer) : SendResult::no_link;
  };
  bulk_seal_.emplace(*seal_form(welcome_.features & options_.features), bulk_keys_->to_listener, bulk_keys_->to_dialler,
                     options_.seal_threads, put);
  const auto control_took = std::chrono::steady_clock::now() - begun_at_;
  sealing_timer_.expires_after(
      std::max(std::chrono::nanoseconds(std::chrono::milliseconds(options_.connect_timeout_ms)) / sealing_share,
               std::chrono::duration_cast<std::chrono::nanoseconds>(control_took * sealing_patience)));
  sealing_timer_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    if (const auto self = weak.lock(); self && !error) (void)self->give_up_sealing();
  });
  connect(Channel::bulk);
}

bool OutgoingLink::give_up_sealing() {
  End& failed = end(Channel::bulk);
  if (closed_ || !bulk_seal_ || failed.phase == Phase::welcomed) return false;
  sealing_timer_.cancel();
  retry_timer_.cancel();
  close_watched(failed.socket, failed.events, 0);
  bulk_seal_.reset();
  connect(Channel::bulk);
  return true;
}

void OutgoingLink::note_event(Channel channel, SocketEvent event) {
  if (closed_) return;
  const std::string where = options_.address.text();
  switch (event.kind) {
    case ZMQ_EVENT_CONNECTED:
      end(channel).reach(Phase::connected);
      end(channel).descriptor = static_cast<int>(event.value);
      end(channel).connected_at = std::chrono::steady_clock::now();
      return;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      end(channel).reach(Phase::secured);
      return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      // ZeroMQ gives this name to any breach of its protocol, also long after the handshake.
      end(channel).phase < Phase::secured ? handshake_failed(channel) : broke(channel);
      return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      CutHandshakes::tells(event) ? cut_off(channel) : handshake_failed(channel);
      return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      lost(channel, LinkFailure::Kind::denied, "the node at " + where + " denies this node");
      return;
    case ZMQ_EVENT_CLOSED:
      if (end(channel).phase == Phase::dialled) unreachable(channel);
      return;
    case ZMQ_EVENT_DISCONNECTED:
      disconnected(channel);
      return;
    default:
      return;
  }
}

void OutgoingLink::disconnected(Channel channel) {
  if (end(channel).phase < Phase::secured) return handshake_failed(channel);
  end(channel).socket->drain_rest();  // the last message may be a goodbye, or say why we were rejected
  if (closed_) return;
  // A listener that has no room does not read what was sent when the handshake was done.
  if (end(channel).phase == Phase::secured) return cut_off(channel);
  const std::string text = "the connection to " + options_.address.text() + " ended";
  if (channel == Channel::control || end(Channel::bulk).phase != Phase::welcomed) {
    lost(channel, LinkFailure::Kind::disconnected, text);
    return;
  }
  // A node that leaves says goodbye on the other connection, which may end a little later than this one.
  goodbye_timer_.expires_after(goodbye_grace);
  goodbye_timer_.async_wait([weak = weak_from_this(), text](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->fail(LinkFailure::Kind::disconnected, text);
  });
}

void OutgoingLink::unreachable(Channel channel) {
  if (channel == Channel::control && endpoint_index_ + 1 < endpoints_.size()) {
    ++endpoint_index_;
    retry_control();
    return;
  }
  lost(channel, LinkFailure::Kind::unreachable, "nobody answers at " + options_.address.text());
}

void OutgoingLink::broke(Channel channel) {
  lost(channel, LinkFailure::Kind::disconnected,
       "what came from " + options_.address.text() +
           " is not as it was sent: something on the way changes, drops or repeats bytes; look for a proxy or a "
           "faulty device between");
}

void OutgoingLink::handshake_failed(Channel channel) {
  // A node that does not hold the key ends the handshake within a round trip.
  refused_slowly_ = refused_slowly_ || std::chrono::steady_clock::now() - end(channel).connected_at > greeting_patience;
  if (channel == Channel::control && key_index_ + 1 < keys_.all().size()) {
    ++key_index_;
    retry_control();
    return;
  }
  if (channel == Channel::control) return ask_who_answers();
  // The key is right, since control has used it.
  lost(channel, LinkFailure::Kind::disconnected, broken_handshake(options_.address.text()));
}

/// The listener has closed the connection before it admitted this node.
void OutgoingLink::cut_off(Channel channel) {
  const End& failed = end(channel);
  // A ticket is good once.
  if (channel == Channel::bulk && failed.phase == Phase::secured && give_up_sealing()) return;
  const auto pause = cut_.pause();
  if (!pause) return cut_too_often(channel);
  close_watched(failed.socket, failed.events, 0);
  retry_timer_.expires_after(*pause);
  retry_timer_.async_wait([weak = weak_from_this(), channel](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self && !self->closed_) self->connect(channel);
  });
}

void OutgoingLink::cut_too_often(Channel channel) {
  if (channel == Channel::control && end(channel).phase < Phase::secured) return ask_who_answers();
  lost(channel, LinkFailure::Kind::disconnected, broken_handshake(options_.address.text()));
}

void OutgoingLink::ask_who_answers() {
  End& failed = end(Channel::control);
  close_watched(failed.socket, failed.events, 0);
  greeting_probe_ = std::make_shared<GreetingProbe>(loop_, [weak = weak_from_this()](const Greeting& greeting) {
    const auto self = weak.lock();
    if (!self || self->closed_) return;
    LinkFailure failure = self->failure_of(greeting);
    self->fail(failure.kind, std::move(failure.text));
  });
  greeting_probe_->start(endpoints_[endpoint_index_], options_.interface);
}

LinkFailure OutgoingLink::failure_of(const Greeting& greeting) const {
  if (std::string text = not_a_node(greeting, options_.address); !text.empty())
    return {.kind = LinkFailure::Kind::not_a_node, .text = std::move(text)};
  if (greeting.speaker != Greeting::Speaker::zeromq || refused_slowly_ || cut_.any())
    return {.kind = LinkFailure::Kind::disconnected, .text = broken_handshake(options_.address.text())};
  return {.kind = LinkFailure::Kind::handshake,
          .text = "the node at " + options_.address.text() +
                  " does not hold our cluster key (or this node does not hold its key), or it is no Gossamer node; "
                  "if the key was changed while this node was away, it needs an invitation "
                  "(gossamerctl invite on a member, gossamerctl join here)"};
}

void OutgoingLink::retry_control() {
  End& failed = end(Channel::control);
  close_watched(failed.socket, failed.events, 0);
  connect(Channel::control);
}

SendResult OutgoingLink::send(Channel channel, const Frames& frames, const QueueMeter& meter, TimeUs now) {
  if (closed_ || !end(channel).socket) return SendResult::no_link;
  PolledSocket& socket = *end(channel).socket;
  return channel == Channel::bulk && bulk_seal_ ? bulk_seal_->send(frames, meter, now) : socket.send({}, frames, meter);
}

void OutgoingLink::flush() {
  // If the connection has ended, its events tell it.
  if (!closed_ && bulk_seal_) (void)bulk_seal_->flush();
}

/// The connection failed or ended, and the other end has not said why.
void OutgoingLink::lost(Channel channel, LinkFailure::Kind kind, std::string text) {
  if (channel == Channel::bulk && give_up_sealing()) return;
  fail(kind, std::move(text));
}

void OutgoingLink::fail(LinkFailure::Kind kind, std::string text, RejectReason reason) {
  if (closed_) return;
  close(0);
  events_.failed(*this, {kind, reason, std::move(text)});
}

void OutgoingLink::close(int linger_ms) {
  if (closed_) return;
  closed_ = true;
  resolver_.cancel();
  retry_timer_.cancel();
  goodbye_timer_.cancel();
  sealing_timer_.cancel();
  if (greeting_probe_) greeting_probe_->cancel();
  if (bulk_seal_ && linger_ms > 0) bulk_seal_->flush_all();
  for (End& closing : ends_)
    close_watched(closing.socket, closing.events, linger_ms);
}

}  // namespace gossamer::peer
