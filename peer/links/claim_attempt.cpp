#include "peer/links/claim_attempt.hpp"

#include <atomic>

#include "peer/limits.hpp"
#include "peer/links/dialling.hpp"
#include "peer/wire/codec.hpp"

namespace gossamer::peer {
ClaimAttempt::ClaimAttempt(asio::io_context& loop, zmq::context_t& context, const Identity& identity,
                           Invitation invitation, std::optional<Certificate> certificate, std::string interface,
                           Ended ended)
    : loop_(loop),
      context_(context),
      identity_(identity),
      invitation_(std::move(invitation)),
      certificate_(std::move(certificate)),
      interface_(std::move(interface)),
      ended_(std::move(ended)),
      resolver_(loop),
      timer_(loop),
      cut_(random_number()) {}

void ClaimAttempt::start() {
  give_up_at_ = std::chrono::steady_clock::now() + claim_patience;
  try_address();
}

void ClaimAttempt::try_address() {
  if (closed_) return;
  phase_ = Phase::dialled;
  timer_.expires_after(claim_answer_timeout);
  timer_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_) return;
    if (self->phase_ == Phase::connected && !self->greeting_probe_) {
      self->next_address(not_a_node({.speaker = Greeting::Speaker::silent}, self->invitation_.addresses[self->index_]),
                         true);
    } else if (self->phase_ != Phase::dialled) {
      self->next_address("the node at " + self->here() + " took the connection and said nothing", true);
    } else {
      self->next_address("nobody answers at " + self->here(), false);
    }
  });
  const Address& address = invitation_.addresses[index_];
  resolver_.async_resolve(address.host, std::to_string(address.port),
                          [weak = weak_from_this()](const asio::error_code& error, const auto& results) {
                            const auto self = weak.lock();
                            if (!self || self->closed_ || error == asio::error::operation_aborted) return;
                            if (error || results.empty()) {
                              self->next_address("no address is known for the host of " + self->here(), false);
                              return;
                            }
                            const auto endpoint = results.begin()->endpoint();
                            self->resolved({endpoint.address().to_string(), endpoint.port()});
                          });
}

void ClaimAttempt::resolved(const Address& endpoint) {
  endpoint_ = endpoint;
  try {
    open_socket(endpoint);
  } catch (const zmq::error_t& error) {
    next_address(std::string("cannot open a connection: ") + error.what(), false);
  }
}

void ClaimAttempt::open_socket(const Address& endpoint) {
  socket_ = std::make_shared<PolledSocket>(loop_, context_, zmq::socket_type::dealer);
  zmq::socket_t& socket = socket_->socket();
  use_curve(socket, invitation_.listening_key, identity_.keys);
  prepare(socket, {.to = endpoint, .interface = interface_, .max_frame_bytes = max_header_bytes});
  const auto weak = weak_from_this();
  static std::atomic<std::uint64_t> sockets_opened = 0;  // the name of an earlier attempt may still be taken
  const std::string place = "inproc://claim-" + std::to_string(++sockets_opened);
  events_ = watch_socket(loop_, context_, socket, place, dialling_events, [weak](SocketEvent event) {
    if (const auto self = weak.lock()) self->note_event(event);
  });
  uninterrupted([&] { socket.connect(endpoint.text()); });
  socket_->start(1, [weak](Received&& received) {
    if (const auto self = weak.lock()) self->receive(std::move(received));
  });
  // The claim waits in ZeroMQ's queue until the handshake is done.
  const auto meter = std::make_shared<std::atomic<std::size_t>>(0);
  const InvitationClaim claim = make_claim(invitation_, identity_.keys.public_key, certificate_);
  (void)socket_->send({}, encode(ControlMessage(claim)), meter);
}

void ClaimAttempt::receive(Received&& received) {
  if (closed_ || received.frames.empty()) return;
  const Delivery delivery = delivery_of(std::move(received), 0);
  auto packet = decode(delivery.frames);
  auto* control = packet ? std::get_if<ControlMessage>(&*packet) : nullptr;
  if (auto* grant = control ? std::get_if<InvitationGrant>(control) : nullptr) {
    finish(std::move(*grant));
  } else if (const auto* rejected = control ? std::get_if<Rejected>(control) : nullptr) {
    finish(std::unexpected("the node at " + here() + " turns us away: " + rejected->text));
  } else {
    next_address("the node at " + here() + " answers an invitation with nonsense", false);
  }
}

void ClaimAttempt::note_event(SocketEvent event) {
  if (closed_) return;
  switch (event.kind) {
    case ZMQ_EVENT_CONNECTED:
      phase_ = Phase::connected;
      return;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      finish(std::unexpected("the node at " + here() + " denies this node: an operator there has to allow it " +
                             "(gossamerctl allow " + identity_.node.full() + ")"));
      return;
    case ZMQ_EVENT_CLOSED:
      if (phase_ == Phase::dialled) next_address("nobody answers at " + here(), false);
      return;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      phase_ = Phase::secured;
      return;
    default:  // it failed, or ended
      if (phase_ == Phase::secured) return disconnected();
      CutHandshakes::tells(event) ? cut_off() : ask_who_answers();
  }
}

void ClaimAttempt::ask_who_answers() {
  close_watched(socket_, events_, 0);
  greeting_probe_ = std::make_shared<GreetingProbe>(loop_, [weak = weak_from_this()](const Greeting& greeting) {
    const auto self = weak.lock();
    if (!self || self->closed_) return;
    std::string text = not_a_node(greeting, self->invitation_.addresses[self->index_]);
    if (!text.empty()) return self->next_address(std::move(text), false);
    if (greeting.speaker != Greeting::Speaker::zeromq || self->cut_.any())
      return self->next_address(broken_handshake(self->here()), true);
    self->next_address("the node at " + self->here() +
                           " does not know this invitation: its cluster has another key by now, or it belongs to "
                           "another cluster; ask for a new invitation (gossamerctl invite)",
                       true);
  });
  greeting_probe_->start(endpoint_, interface_);
}

void ClaimAttempt::disconnected() {
  const std::shared_ptr<PolledSocket> ending = socket_;
  ending->drain_rest();  // the last message may say why we were turned away
  if (!closed_ && socket_ == ending) cut_off();
}

/// The member has closed the connection before it has read the claim.
void ClaimAttempt::cut_off() {
  const auto pause = cut_.pause();
  if (!pause) return next_address(broken_handshake(here()), true);
  leave_address();
  try_after(*pause);
}

void ClaimAttempt::try_after(std::chrono::microseconds pause) {
  timer_.expires_after(pause);
  timer_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->try_address();
  });
}

void ClaimAttempt::leave_address() {
  close_watched(socket_, events_, 0);
  socket_.reset();
  events_.reset();
  if (greeting_probe_) greeting_probe_->cancel();
  greeting_probe_.reset();
  resolver_.cancel();
}

void ClaimAttempt::next_address(std::string why, bool again) {
  leave_address();
  cut_.begin_anew();
  if (again || !try_again_) complaint_ = std::move(why);
  try_again_ = try_again_ || again;
  if (++index_ < invitation_.addresses.size()) {
    try_address();
    return;
  }
  index_ = 0;
  if (!try_again_ || std::chrono::steady_clock::now() >= give_up_at_) {
    finish(std::unexpected(complaint_));
    return;
  }
  try_again_ = false;
  try_after(claim_pause);
}

void ClaimAttempt::finish(std::expected<InvitationGrant, std::string> result) {
  if (closed_) return;
  const auto self = shared_from_this();
  close();
  std::exchange(ended_, nullptr)(std::move(result));
}

void ClaimAttempt::close() {
  if (closed_) return;
  closed_ = true;
  resolver_.cancel();
  timer_.cancel();
  if (greeting_probe_) greeting_probe_->cancel();
  close_watched(socket_, events_, 0);
}

}  // namespace gossamer::peer
