#include "peer/overlay/links.hpp"

#include <spdlog/spdlog.h>
#include <algorithm>

#include "gossip/check.hpp"
#include "peer/admission/admission.hpp"

namespace gossamer::peer {
namespace {

/// Heartbeats in a row that a link may miss before hearsay about the death of its other end is believed.
constexpr int silent_pings = 3;
/// A node without a link for this long is forgotten if the room is needed: nothing is under way with it any more.
constexpr TimeUs forget_node_us = 600 * us_per_s;

bool is_loopback_host(const std::string& host) {
  return Address{host, 0}.is_loopback();
}

/// What a node says of itself, made fit for this one: the wildcard stands for wherever it was seen. Empty: it cannot be
/// dialled from here.
std::string dialable(const std::string& text, const std::string& host) {
  auto address = parse_address(text, AddressUse::listen);
  if (!address || address->port == 0) return {};
  if (address->is_wildcard()) address->host = host;
  return address->is_loopback() && !is_loopback_host(host) ? std::string{} : address->text();
}

/// An IPv4 peer of an IPv6 socket is seen as ::ffff:1.2.3.4.
std::string plain_host(std::string host) {
  const std::string mapped = "::ffff:";
  const bool is_mapped = host.rfind(mapped, 0) == 0 && host.find('.') != std::string::npos;
  return is_mapped ? host.substr(mapped.size()) : host;
}

}  // namespace

// --- strangers at our port -----------------------------------------------------------------------------------------

void Overlay::Core::arrived(Arrival&& arrival) {
  const auto known = connections_.find(arrival.routing_id);
  if (known == connections_.end()) {
    admit(std::move(arrival));
    return;
  }
  const auto [link, channel] = known->second;
  // A routing id can be taken over by another connection once its owner is gone; the key behind it cannot.
  if (link->user_id != arrival.user_id) {
    end(link, "the connection ended");
    return admit(std::move(arrival));
  }
  deliver(link, channel, std::move(arrival.delivery));
}

void Overlay::Core::admit(Arrival&& arrival) {
  arrival.host = plain_host(std::move(arrival.host));
  const Delivery& delivery = arrival.delivery;
  if (delivery.too_many_frames || delivery.frames.payload_count != 0 || delivery.bytes > max_hello_bytes) {
    ++counters_.strangers;
    return;
  }
  if (!hello_throttle_.take(now())) {
    ++counters_.hellos_throttled;
    return;
  }
  const auto packet = decode(delivery.frames);
  const auto* control = packet ? std::get_if<ControlMessage>(&*packet) : nullptr;
  if (const auto* claim = control ? std::get_if<InvitationClaim>(control) : nullptr) {
    answer_claim(*claim, arrival);
    return;
  }
  const auto* hello = control ? std::get_if<Hello>(control) : nullptr;
  if (hello == nullptr) {
    ++counters_.strangers;  // also the last messages of a link that has just ended
    return;
  }
  auto refusal = refusal_of(*hello, arrival);
  if (!refusal) {
    refusal = hello->channel == Channel::control ? admit_control(*hello, arrival) : admit_bulk(*hello, arrival);
  }
  if (refusal) refuse(arrival, *refusal);
}

std::optional<Overlay::Core::Refusal> Overlay::Core::refusal_of(const Hello& hello, const Arrival& arrival) {
  if (hex(hello.public_key) != arrival.user_id) {
    return Refusal{RejectReason::bad_proof, "the hello's key is not the connection's"};
  }
  if (!is_hello_proven(keys_, hello)) {
    return Refusal{RejectReason::bad_proof,
                   "the hello does not prove that its sender holds the cluster key; if the key was changed while "
                   "it was away, the node needs an invitation (gossamerctl invite)"};
  }
  if (hello.version_low > protocol_version_high || hello.version_high < protocol_version_low) {
    return Refusal{RejectReason::version, "we speak protocol " + std::to_string(protocol_version_low) + " to " +
                                              std::to_string(protocol_version_high) + ", you " +
                                              std::to_string(hello.version_low) + " to " +
                                              std::to_string(hello.version_high)};
  }
  const NodeId node = node_id(hello.public_key);
  if (node == identity_.node) {
    if (hello.incarnation != options_.incarnation) {
      log_->error("another process uses this node's key, from {}: give each node its own state folder", arrival.host);
    }
    return Refusal{RejectReason::self, "that is this node itself"};
  }
  if (denied_.contains(node)) return Refusal{RejectReason::denied, "the node is denied"};
  const auto record = nodes_.find(node);
  if (record == nodes_.end()) return std::nullopt;
  if (now() < record->second.banned_until) {
    return Refusal{RejectReason::misbehaved, "too many malformed messages; come back later"};
  }
  if (hello.incarnation < record->second.incarnation && !record->second.dead) {
    return Refusal{RejectReason::stale, "a later start of the same node is here"};
  }
  return std::nullopt;
}

std::optional<Overlay::Core::Refusal> Overlay::Core::admit_control(const Hello& hello, const Arrival& arrival) {
  const NodeId node = node_id(hello.public_key);
  // What the node left half-done before counts no more.
  end_those([&](const Link& link) {
    const bool half_done = link.node == node && !link.dialled_by_us() && !link.is_up();
    return std::string(half_done ? "dialled anew" : "");
  });
  if (links_.size() >= options_.max_links || record_of(node) == nullptr) {
    return Refusal{RejectReason::full, "no room for another link"};
  }
  note_incarnation(node, hello.incarnation);
  auto link = std::make_shared<Link>();
  link->user_id = arrival.user_id;
  link->host = arrival.host;
  link->number = hello.link;
  link->features = hello.features & options_.features;
  link->node = node;
  link->opened = now();
  if (!welcome(hello, arrival, link)) return Refusal{RejectReason::bad_proof, "the key cannot be used"};
  links_.push_back(link);
  describe(*record_of(node), hello.name, hello.address, link->host);
  return std::nullopt;
}

std::optional<Overlay::Core::Refusal> Overlay::Core::admit_bulk(const Hello& hello, const Arrival& arrival) {
  const NodeId node = node_id(hello.public_key);
  const LinkPtr link = incoming_of(node, hello.link);
  if (!link || !link->routing_ids[index_of(Channel::bulk)].empty()) {
    return Refusal{RejectReason::duplicate, "there is no control connection of that link"};
  }
  // Both have dialled: the node with the smaller id decides which link stays, here and in introduced().
  const auto record = nodes_.find(node);
  GOSSAMER_CHECK(record != nodes_.end());
  const LinkPtr& present = record->second.link;
  const bool young =
      present && present->dialled_by_us() && now() - present->up_since < options_.attempt_timeout_ms * us_per_ms;
  if (identity_.node < node && (young || has_introduced_outgoing(node))) {
    end(link, "the other link is kept");
    return Refusal{RejectReason::duplicate, "the link that we dial is kept"};
  }
  if (!welcome(hello, arrival, link)) return Refusal{RejectReason::bad_proof, "the key cannot be used"};
  return std::nullopt;  // it comes up with the first message: the dialler then knows that it is
}

bool Overlay::Core::welcome(const Hello& hello, const Arrival& arrival, const LinkPtr& link) {
  Welcome welcome;
  welcome.version = std::min(hello.version_high, protocol_version_high);
  welcome.incarnation = options_.incarnation;
  welcome.address = advertised_;
  welcome.name = options_.name;
  welcome.features = options_.features;
  if (!prove_welcome(identity_.keys, hello, welcome)) return false;
  link->routing_ids[index_of(hello.channel)] = arrival.routing_id;
  connections_[arrival.routing_id] = {link, hello.channel};
  listener_.admit(arrival);
  (void)listener_.send(arrival.routing_id, encode(ControlMessage(std::move(welcome))), link->meter);
  return true;
}

void Overlay::Core::refuse(const Arrival& arrival, const Refusal& refusal) {
  const bool expected = refusal.reason == RejectReason::self || refusal.reason == RejectReason::duplicate;
  if (!expected) {
    ++counters_.admissions_refused;
    if (log_throttle_.take(now())) log_->warn("turned away a node at {}: {}", arrival.host, refusal.text);
  }
  const auto meter = std::make_shared<std::atomic<std::size_t>>(0);
  (void)listener_.send(arrival.routing_id, encode(ControlMessage(Rejected{refusal.reason, refusal.text})), meter);
}

// --- links that we dial --------------------------------------------------------------------------------------------

bool Overlay::Core::introduced(OutgoingLink& outgoing, const Welcome& welcome) {
  turns_->read_clock();  // the link waits for the answer: no turn to tell anything in
  const LinkPtr link = link_of(outgoing);
  const NodeId node = node_id(welcome.public_key);
  book_.identified(outgoing.address(), node);
  NodeRecord* record = node == identity_.node ? nullptr : record_of(node);
  std::string obstacle;
  if (denied_.contains(node)) {
    obstacle = "the node at " + outgoing.address().text() + " is denied here";
  } else if (record != nullptr && now() < record->banned_until) {
    obstacle = "the node at " + outgoing.address().text() + " has sent too many malformed messages";
  } else if (record != nullptr && welcome.incarnation < record->incarnation && !record->dead) {
    obstacle = "an earlier start of a node answers at " + outgoing.address().text();
  }
  if (!obstacle.empty()) {
    ++counters_.attempts_failed;
    if (book_.failed(outgoing.address(), obstacle, now(), random_)) log_->warn("{}", obstacle);
  }
  // Ourselves, the node under another address, or both have dialled and theirs was through first (see admit_bulk).
  const bool needless = record == nullptr || record->link || (identity_.node < node && has_admitted_incoming(node));
  if (needless) book_.released(outgoing.address(), now(), random_);
  if (needless || !obstacle.empty()) {
    end(link, "not needed");
    return false;
  }
  link->node = node;
  link->user_id = hex(welcome.public_key);
  link->features = welcome.features & options_.features;
  note_incarnation(node, welcome.incarnation);
  describe(*record_of(node), welcome.name, welcome.address, link->host);
  return true;
}

void Overlay::Core::established(OutgoingLink& outgoing) {
  turns_->run([&] {
    const LinkPtr link = link_of(outgoing);
    say(*link, Channel::control, Ping{now(), {}});  // tells the other end that the link is up
    bring_up(link);
  });
}

void Overlay::Core::delivered(OutgoingLink& outgoing, Channel channel, Delivery&& delivery) {
  turns_->run([&] { deliver(link_of(outgoing), channel, std::move(delivery)); });
}

void Overlay::Core::failed(OutgoingLink& outgoing, const LinkFailure& failure) {
  turns_->run([&] {
    const LinkPtr link = link_of(outgoing);
    if (!link->is_up()) attempt_failed(outgoing, failure);
    end(link, failure.text);
  });
}

void Overlay::Core::attempt_failed(const OutgoingLink& outgoing, const LinkFailure& failure) {
  const bool rejected = failure.kind == LinkFailure::Kind::rejected;
  if (rejected && failure.reason == RejectReason::self) {
    book_.identified(outgoing.address(), identity_.node);
    book_.released(outgoing.address(), now(), random_);
  } else if (rejected && failure.reason == RejectReason::duplicate) {
    book_.released(outgoing.address(), now(), random_);
  } else {
    ++counters_.attempts_failed;
    const bool news = book_.failed(outgoing.address(), failure.text, now(), random_);
    log_->log(news ? spdlog::level::warn : spdlog::level::debug, "no link: {}", failure.text);
  }
}

// --- a link's life -------------------------------------------------------------------------------------------------

NodeRecord* Overlay::Core::record_of(const NodeId& node) {
  const auto known = nodes_.find(node);
  if (known != nodes_.end()) return &known->second;
  if (nodes_.size() >= max_members) {
    const auto spare = std::ranges::find_if(nodes_, [this](const auto& item) {
      const NodeRecord& record = item.second;
      const bool in_use = std::ranges::any_of(links_, [&](const LinkPtr& link) { return link->node == item.first; });
      const bool over = record.dead || !record.was_up || now() - record.down_since >= forget_node_us;
      return !in_use && over && now() >= record.banned_until;
    });
    if (spare == nodes_.end()) return nullptr;
    nodes_.erase(spare);
  }
  return &nodes_[node];
}

void Overlay::Core::describe(NodeRecord& record, const std::string& name, const std::string& address,
                             const std::string& host) {
  record.name = name;
  record.address = dialable(address, host);
}

void Overlay::Core::note_incarnation(const NodeId& node, std::uint64_t incarnation) {
  NodeRecord& record = *record_of(node);
  const bool restarted = record.was_up && record.incarnation != incarnation;
  record.incarnation = incarnation;
  if (!restarted) return;
  if (const LinkPtr link = record.link) end(link, "the node has restarted");
  declare_dead(node);
}

void Overlay::Core::bring_up(const LinkPtr& link) {
  NodeRecord* record = record_of(link->node);
  GOSSAMER_CHECK(record != nullptr);
  if (const LinkPtr older = record->link) end(older, "replaced by a newer link");
  link->enter(LinkPhase::passing);
  link->up_since = link->last_heard = link->last_ping = link->last_kept = now();
  link->heard.fill(now());
  link->last_bulk_ping = now();
  link->budget.set_rate(options_.link_bytes_per_s);
  record->link = link;
  record->last_error.clear();
  ++counters_.links_up;
  spread_.link_up(link->node, now());
  book_.link_up(link->node, now());
  log_->info("link to {} {} is up ({} dialled, {})", link->node.brief(), record->name,
             link->dialled_by_us() ? "we" : "they", link->host);
  if (!link->dialled_by_us()) roster_->seen_at(link->node, record->address);
  say(*link, Channel::control, BulkAck{});  // that we take parts, and acknowledge
  const std::string dialled = link->outgoing ? link->outgoing->address().text() : std::string{};
  const bool said_something = roster_->link_up(link->node, record->incarnation, dialled, now());
  link->last_greeted = said_something ? now() : now() - options_.membership.probe_interval_us;
  follow_roster();
  if (!link->is_shown()) (void)tend_passing(*link);  // it has been needed just now
}

/// Tells of links that are kept and are up, and of those that are kept no longer.
void Overlay::Core::show_links() {
  for (const LinkPtr& link : links_) {
    if (!link->is_up()) continue;
    const bool kept = roster_->keeps(link->node);
    if (kept) link->last_kept = now();
    if (kept == link->is_shown()) continue;
    if (!kept) {
      const bool gone = roster_->membership().considers_gone(link->node);
      hide(link, gone ? "it is held to be dead" : "it is not among this node's neighbours any more");
      continue;
    }
    NodeRecord& record = *record_of(link->node);
    link->enter(LinkPhase::shown);
    record.was_up = true;
    record.dead = false;
    turns_->happened(LinkUp{link->node});
  }
}

void Overlay::Core::hide(const LinkPtr& link, const std::string& reason) {
  link->enter(LinkPhase::passing);
  record_of(link->node)->last_error = reason;
  turns_->happened(LinkDown{link->node, reason});
}

void Overlay::Core::end(const LinkPtr& link, const std::string& reason) {
  const bool was_up = link->is_up();
  if (link->is_shown()) hide(link, reason);
  link->enter(LinkPhase::ended);
  std::erase(links_, link);
  for (const std::string& routing_id : link->routing_ids) {
    connections_.erase(routing_id);
    listener_.dismiss(routing_id);
  }
  if (link->outgoing) link->outgoing->close(0);
  if (was_up) {
    ++counters_.links_lost;
    spread_.link_down(link->node);
    const auto record = nodes_.find(link->node);
    GOSSAMER_CHECK(record != nodes_.end() && record->second.link == link);
    record->second.link = nullptr;
    record->second.down_since = now();
    record->second.last_error = reason;
    book_.link_down(link->node, now(), random_);
    log_->info("link to {} {} is down: {}", link->node.brief(), record->second.name, reason);
    roster_->link_down(link->node, now());
  }
  // A node that is denied will not be back: nothing waits for it.
  const bool gone = was_up && roster_->membership().considers_gone(link->node);
  if (gone || denied_.contains(link->node)) declare_dead(link->node);
}

void Overlay::Core::end_those(const std::function<std::string(Link&)>& reason_of) {
  std::vector<std::pair<LinkPtr, std::string>> over;
  for (const LinkPtr& link : links_) {
    if (std::string reason = reason_of(*link); !reason.empty()) over.emplace_back(link, std::move(reason));
  }
  for (const auto& [link, reason] : over)
    end(link, reason);
}

// --- who is there --------------------------------------------------------------------------------------------------

bool Overlay::Core::send_membership(const NodeId& to, const MembershipMessage& message) {
  const auto record = nodes_.find(to);
  if (record == nodes_.end() || !record->second.link) return false;
  Link& link = *record->second.link;
  return link.broken.empty() && post(link, Channel::control, encode(message)) == SendResult::sent;
}

std::optional<NodeId> Overlay::Core::node_at(const std::string& address) const {
  return book_.node_at(address);
}

std::string Overlay::Core::seen_address(const NodeId& node) const {
  const auto record = nodes_.find(node);
  return record == nodes_.end() ? std::string{} : record->second.address;
}

/// Does what the roster has decided in this turn.
void Overlay::Core::follow_roster() {
  for (const Roster::MemberChange& change : roster_->take_changes())
    member_changed(change);
  show_links();
}

/// A death is hearsay as long as there is a link that is not silent, and never that of a life that has just begun:
/// whoever comes back as another life has shown so in its hello (note_incarnation).
void Overlay::Core::member_changed(const Roster::MemberChange& changed) {
  const auto& [node, change, own_word] = changed;
  if (change == Roster::Change::suspected || change == Roster::Change::refuted) {
    log_->debug("node {} is {}", node.brief(), change == Roster::Change::suspected ? "suspected" : "heard of again");
  }
  const bool gone = change == Roster::Change::died || change == Roster::Change::left;
  if (!gone || !roster_->membership().considers_gone(node)) return;
  book_.forget(node);
  const auto record = nodes_.find(node);
  if (record == nodes_.end()) return;
  if (const LinkPtr link = record->second.link) {
    const bool silent = now() - link->last_heard >= silent_pings * options_.ping_interval_ms * us_per_ms;
    if (!own_word && !silent) return;  // told when the link ends, unless it shows to be alive by then
    end(link, own_word ? "goodbye: the node leaves" : "it is dead");
  }
  declare_dead(node);
}

void Overlay::Core::declare_dead(const NodeId& node) {
  const auto record = nodes_.find(node);
  if (record == nodes_.end() || record->second.dead || !record->second.was_up) return;
  record->second.dead = true;
  log_->info("node {} {} is dead", node.brief(), record->second.name);
  turns_->happened(NodeDead{node});
}

void Overlay::Core::set_broken(Link& link, std::string why) {
  link.broken = std::move(why);
  if (!std::exchange(broken_queued_, true)) turns_->soon([this] { end_broken(); });
}

void Overlay::Core::end_broken() {
  broken_queued_ = false;
  end_those([](const Link& link) { return link.broken; });
}

// --- messages ------------------------------------------------------------------------------------------------------

void Overlay::Core::deliver(const LinkPtr& link, Channel channel, Delivery&& delivery) {
  link->last_heard = link->heard[index_of(channel)] = now();
  const std::size_t payload_bytes = delivery.frames.payload_bytes();
  for (Traffic* traffic : {&counters_.traffic, &record_of(link->node)->traffic}) {
    ++traffic->messages_received;
    (channel == Channel::control ? traffic->control_bytes_received : traffic->bulk_bytes_received) += delivery.bytes;
    traffic->payload_bytes_received += payload_bytes;
  }
  if (delivery.too_many_frames) {
    if (channel == Channel::bulk) bulk_arrived(*link, delivery.bytes);
    return note_malformed(link, "too many frames");
  }
  auto packet = decode(delivery.frames);
  const bool is_control = packet && std::holds_alternative<ControlMessage>(*packet);
  if (channel == Channel::bulk && !is_control) bulk_arrived(*link, delivery.bytes);
  take(link, channel, std::move(packet));
}

void Overlay::Core::take(const LinkPtr& link, Channel channel, std::expected<Packet, DecodeError>&& packet) {
  if (!packet && packet.error().kind == DecodeError::Kind::unknown) {
    ++counters_.unknown;
    return;
  }
  if (!packet) return note_malformed(link, packet.error().text);
  if (!link->is_up()) {
    const bool admitted = std::ranges::none_of(link->routing_ids, &std::string::empty);
    if (link->dialled_by_us() || !admitted) return note_malformed(link, "a message before the link is up");
    bring_up(link);
  }
  if (auto* control = std::get_if<ControlMessage>(&*packet)) {
    handle(link, channel, std::move(*control));
    return;
  }
  if (auto* membership = std::get_if<MembershipMessage>(&*packet)) {
    if (channel != Channel::control) return note_malformed(link, "a message on the wrong channel");
    roster_->receive(link->node, std::move(*membership), link->host, now());
    return follow_roster();
  }
  if (const auto* part = std::get_if<BulkPart>(&*packet)) {
    if (channel != Channel::bulk) return note_malformed(link, "a part of a message on the control channel");
    take_part(link, *part);
    return;
  }
  Message& message = std::get<Message>(*packet);
  if (channel_of(message) != channel) return note_malformed(link, "a message on the wrong channel");
  record_of(link->node)->was_up = true;
  link->last_kept = now();
  turns_->happened(MessageReceived{link->node, std::move(message)});
}

void Overlay::Core::take_part(const LinkPtr& link, const BulkPart& part) {
  auto message = link->assembly.add(part);
  if (!message) return note_malformed(link, message.error());
  if (!*message) return;
  auto packet = decode(**message);
  if (packet && !std::holds_alternative<Message>(*packet)) {
    return note_malformed(link, "what came in parts is no message of gossip");
  }
  take(link, Channel::bulk, std::move(packet));
}

void Overlay::Core::handle(const LinkPtr& link, Channel channel, ControlMessage&& message) {
  if (const auto* ping = std::get_if<Ping>(&message)) {
    say(*link, channel, Pong{ping->sent_at});
  } else if (const auto* pong = std::get_if<Pong>(&message)) {
    // The time is ours come back; one from the future, or out of another life, says nothing.
    const TimeUs round_trip = now() - pong->sent_at;
    if (channel != Channel::control || pong->sent_at < link->opened || round_trip < 0) return;
    const double measured_ms = static_cast<double>(round_trip) / us_per_ms;
    constexpr double weight = 0.125;
    link->round_trip_ms += (link->round_trip_ms == 0 ? 1 : weight) * (measured_ms - link->round_trip_ms);
    link->last_round_trip_ms = measured_ms;
    link->pacing.round_trip(pong->sent_at, now());
  } else if (const auto* goodbye = std::get_if<Goodbye>(&message)) {
    const NodeId node = link->node;
    book_.forget(node);
    end(link, "goodbye: " + goodbye->text);
    declare_dead(node);
  } else if (const auto* rejected = std::get_if<Rejected>(&message)) {
    end(link, "put out: " + rejected->text);
  } else if (channel != Channel::control) {
    note_malformed(link, "a message on the wrong channel");
  } else if (const auto* denials = std::get_if<DenialList>(&message)) {
    hear(link, *denials);
  } else if (const auto* ring = std::get_if<RingState>(&message)) {
    hear(link, *ring);
  } else if (const auto* ack = std::get_if<BulkAck>(&message)) {
    acknowledged(link, *ack);
  } else {
    note_malformed(link, "a message of admission on an admitted connection");
  }
}

void Overlay::Core::note_malformed(const LinkPtr& link, std::string_view why) {
  ++counters_.malformed;
  if (log_throttle_.take(now())) log_->warn("malformed message from {}: {}", link->node.brief(), why);
  if (++link->malformed <= max_malformed_messages) return;
  if (NodeRecord* record = record_of(link->node)) record->banned_until = now() + misbehaviour_ban_us;
  say(*link, Channel::control, Rejected{RejectReason::misbehaved, "too many malformed messages"});
  end(link, "too many malformed messages");
}

SendResult Overlay::Core::send(const NodeId& to, const Message& message) {
  const auto record = nodes_.find(to);
  if (record == nodes_.end() || !record->second.link) return SendResult::no_link;
  const LinkPtr link = record->second.link;
  if (!link->broken.empty()) return SendResult::no_link;
  const bool bulk = channel_of(message) == Channel::bulk;
  const SendResult result = bulk ? send_bulk(link, message) : post(*link, Channel::control, encode(message));
  if (result == SendResult::full) ++counters_.sends_full;
  return result;
}

SendResult Overlay::Core::post(Link& link, Channel channel, const Frames& frames) {
  const SendResult result = link.outgoing ? link.outgoing->send(channel, frames, link.meter)
                                          : listener_.send(link.routing_ids[index_of(channel)], frames, link.meter);
  if (result == SendResult::no_link) {
    set_broken(link, "the connection ended");
  }
  if (result != SendResult::sent) return result;
  charge(link, frames);
  for (Traffic* traffic : {&counters_.traffic, &record_of(link.node)->traffic}) {
    ++traffic->messages_sent;
    (channel == Channel::control ? traffic->control_bytes_sent : traffic->bulk_bytes_sent) += frames.bytes();
    traffic->payload_bytes_sent += frames.payload_bytes();
  }
  return result;
}

void Overlay::Core::say(Link& link, Channel channel, const ControlMessage& message) {
  (void)post(link, channel, encode(message));
}

void Overlay::Core::ping(Link& link) {
  link.last_ping = now();
  say(link, Channel::control, Ping{now(), {}});
}

// --- looking things up ---------------------------------------------------------------------------------------------

bool Overlay::Core::is_linked(const NodeId& node) const {
  const auto record = nodes_.find(node);
  return record != nodes_.end() && record->second.link;
}

LinkPtr Overlay::Core::link_of(const OutgoingLink& outgoing) const {
  const auto found = std::ranges::find_if(links_, [&](const LinkPtr& l) { return l->outgoing.get() == &outgoing; });
  GOSSAMER_CHECK(found != links_.end());  // one that has ended is closed and calls no more
  return *found;
}

LinkPtr Overlay::Core::incoming_of(const NodeId& node, std::uint64_t number) const {
  const auto found = std::ranges::find_if(links_, [&](const LinkPtr& link) {
    return !link->dialled_by_us() && !link->is_up() && link->node == node && link->number == number;
  });
  return found == links_.end() ? nullptr : *found;
}

bool Overlay::Core::has_admitted_incoming(const NodeId& node) const {
  return std::ranges::any_of(links_, [&](const LinkPtr& link) {
    return !link->dialled_by_us() && link->node == node && std::ranges::none_of(link->routing_ids, &std::string::empty);
  });
}

bool Overlay::Core::has_introduced_outgoing(const NodeId& node) const {
  return std::ranges::any_of(
      links_, [&](const LinkPtr& link) { return link->dialled_by_us() && !link->is_up() && link->node == node; });
}

}  // namespace gossamer::peer
