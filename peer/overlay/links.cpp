#include "peer/overlay/links.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <algorithm>

#include "gossip/check.hpp"

namespace gossamer::peer {
namespace {

/// A link must be silent for this many heartbeats before hearsay about the death of its other end is believed.
constexpr int silent_pings = 3;
/// A bulk connection may be silent for this many times link_timeout_ms.
constexpr int bulk_patience = 10;
/// The bound on attempts begun in one tick leaves room for links that others dial.
constexpr std::size_t attempts_per_tick = 8;

/// The address that a node tells of itself, as this node can dial it: a wildcard stands for the host where the node is
/// seen. Empty: it cannot be dialled from here.
std::string dialable(const std::string& text, const std::string& host) {
  auto address = parse_address(text, AddressUse::listen);
  if (!address || address->port == 0) return {};
  if (address->is_wildcard()) address->host = host;
  return address->is_loopback() && !Address{host}.is_loopback() ? std::string{} : address->text();
}

}  // namespace

void Links::start() {
  Roster::Host& host = *this;
  const std::string& address = own_address_.text();
  roster_.emplace(self_.options.membership,
                  MemberRecord{self_.identity.node, self_.options.incarnation, address.empty(), address},
                  gossip::Random(self_.random.next()), self_.now(), host);
}

bool Links::all_dialled() const {
  const bool alone = !roster_ || roster_->membership().view().empty();
  if (!book_.all_dialled([this](const NodeId& node) { return table_.is_linked(node); }, alone)) return false;
  // A new link that is not shown yet will be shown when the two nodes know each other, and then there are more nodes to
  // meet.
  const bool meeting = std::ranges::any_of(table_.links(), [this](const LinkPtr& link) {
    return link->phase == LinkPhase::passing &&
           self_.now() - link->up_since < self_.options.membership.probe_interval_us;
  });
  return !meeting && (!roster_ || std::ranges::all_of(roster_->wanted(), [this](const auto& wanted) {
    // The address of a node that has lost its key may belong to another node by now, or to this one.
    const auto there = book_.node_at(wanted.address);
    const bool is_taken = wanted.address == own_address_.text() || (there && table_.is_linked(*there));
    return is_taken || table_.is_linked(wanted.node) || book_.has_failed(wanted.node);
  }));
}

/// The contacts to join through are the addresses to dial, the configured ones first.
void Links::tell_contacts() {
  if (!roster_) return;
  std::vector<std::string> contacts;
  for (const bool configured : {true, false}) {
    for (const auto& [text, entry] : book_.entries()) {
      if (entry.configured == configured) contacts.push_back(text);
    }
  }
  roster_->set_contacts(std::move(contacts), self_.now());
}

void Links::leave() {
  if (roster_) roster_->leave(self_.now());
  for (const LinkPtr& link : table_.links()) {
    if (link->is_up()) sender_.say(*link, Channel::control, Goodbye{"the node stops"});
  }
}

void Links::close(int linger_ms) {
  for (const LinkPtr& link : table_.links()) {
    if (link->outgoing) link->outgoing->close(linger_ms);
  }
  table_.clear();
}

// --- links that this node dials -------------------------------------------------------------------------------------

/// While nobody is known, every address in the book is dialled. With partial views a configured node is only a contact
/// to join through, and is not dialled otherwise.
void Links::dial_due() {
  for (const auto& [node, text, unexpected] : roster_->wanted()) {
    if (table_.is_linked(node)) continue;
    const auto address = parse_address(text, AddressUse::dial);
    if (address) (void)book_.learn(node, *address, self_.now(), unexpected);
  }
  const bool alone = roster_->membership().view().empty();
  const auto is_wanted = [&](const BookEntry& entry) {
    if (alone || (entry.node && roster_->wants(*entry.node))) return true;
    return entry.configured && !roster_->membership().partial();
  };
  const std::size_t room = self_.options.max_links - std::min(self_.options.max_links, table_.links().size());
  const auto due = book_.take_due(
      self_.now(), std::min(room, attempts_per_tick), [this](const NodeId& node) { return table_.is_linked(node); },
      is_wanted);
  for (const Address& address : due)
    dial(address);
}

void Links::dial(const Address& address) {
  ++self_.counters.attempts;
  OutgoingLinkOptions options;
  options.address = address;
  options.incarnation = self_.options.incarnation;
  options.own_address = own_address_.text();
  options.own_name = self_.options.name;
  options.interface = self_.options.interface;
  options.features = self_.options.features;
  if (const Certificate* const own = agreement_.certificate_of(self_.identity.node)) options.certificate = *own;
  options.deputies = agreement_.deputies_to_show();
  options.connect_timeout_ms = self_.options.attempt_timeout_ms;
  options.high_water_messages = {self_.options.control_high_water_messages, self_.options.bulk_high_water_messages};
  options.bulk_io_thread = idlest_io_thread();
  options.seal_threads = self_.seal_threads;
  auto link = std::make_shared<Link>();
  link->bulk_io_thread = options.bulk_io_thread;
  link->host = address.host;
  link->opened = self_.now();
  link->outgoing = std::make_shared<OutgoingLink>(self_.loop, self_.zmq, std::move(options), self_.identity,
                                                  agreement_.keys(), *this);
  table_.add(link);
  link->outgoing->start();
}

/// ZeroMQ gives connections to its threads in turn, and every second connection carries next to nothing, so all bulk
/// could meet on the same threads. Therefore bulk goes to the thread with the fewest links that this node dialled.
int Links::idlest_io_thread() const {
  std::vector<int> links(static_cast<std::size_t>(self_.options.io_threads));
  for (const LinkPtr& link : table_.links()) {
    if (link->dialled_by_us()) ++links[static_cast<std::size_t>(link->bulk_io_thread)];
  }
  return static_cast<int>(std::ranges::min_element(links) - links.begin());
}

bool Links::introduced(OutgoingLink& outgoing, const Welcome& welcome) {
  self_.turns->read_clock();  // no turn of its own: the link waits for the answer
  const LinkPtr link = table_.link_of(outgoing);
  const NodeId node = node_id(welcome.public_key);
  book_.identified(outgoing.address(), node);
  NodeRecord* record = node == self_.identity.node ? nullptr : table_.record_of(node, self_.now());
  std::string obstacle;
  agreement_.take_shown(node, welcome.deputies);
  if (agreement_.is_denied(node)) {
    obstacle = "the node at " + outgoing.address().text() + " is denied here";
  } else if (record != nullptr && self_.now() < record->banned_until) {
    obstacle = "the node at " + outgoing.address().text() + " has sent too many malformed messages";
  } else if (record != nullptr && welcome.incarnation < record->incarnation && !record->dead) {
    obstacle = "an earlier start of a node answers at " + outgoing.address().text();
  } else if (record != nullptr) {
    const auto objection = agreement_.objection_to({node, welcome.name, link->host}, welcome.certificate);
    if (objection) obstacle = "the node at " + outgoing.address().text() + " is not let in: " + *objection;
  }
  if (!obstacle.empty()) {
    if (note_failure(outgoing.address(), obstacle)) self_.log->warn("{}", obstacle);
  }
  // The link is needless if the node is this one or is linked already, or if both have dialled and the other node's
  // link stays (Strangers::admit_bulk()).
  const bool needless =
      record == nullptr || record->link || (self_.identity.node < node && table_.has_admitted_incoming(node));
  if (needless) book_.released(outgoing.address(), self_.now(), self_.random);
  if (needless || !obstacle.empty()) {
    end(link, "not needed");
    return false;
  }
  link->node = node;
  link->user_id = hex(welcome.public_key);
  link->features = welcome.features & self_.options.features;
  note_incarnation(node, welcome.incarnation);
  describe(node, welcome.name, welcome.address, link->host);
  return true;
}

void Links::established(OutgoingLink& outgoing) {
  self_.turns->run([&] {
    const LinkPtr link = table_.link_of(outgoing);
    sender_.ping(*link, Channel::control);  // tells the other end that the link is up
    bring_up(link);
  });
}

void Links::delivered(OutgoingLink& outgoing, Channel channel, Delivery&& delivery) {
  self_.turns->run([&] { deliver(table_.link_of(outgoing), channel, std::move(delivery)); });
}

void Links::failed(OutgoingLink& outgoing, const LinkFailure& failure) {
  self_.turns->run([&] {
    const LinkPtr link = table_.link_of(outgoing);
    if (!link->is_up()) attempt_failed(outgoing, failure);
    end(link, failure.text);
  });
}

void Links::attempt_failed(const OutgoingLink& outgoing, const LinkFailure& failure) {
  const bool rejected = failure.kind == LinkFailure::Kind::rejected;
  if (rejected && failure.reason == RejectReason::self) {
    book_.identified(outgoing.address(), self_.identity.node);
    book_.released(outgoing.address(), self_.now(), self_.random);
  } else if (rejected && failure.reason == RejectReason::duplicate) {
    book_.released(outgoing.address(), self_.now(), self_.random);
  } else {
    const bool news = note_failure(outgoing.address(), failure.text);
    self_.log->log(news ? spdlog::level::warn : spdlog::level::debug, "no link: {}", failure.text);
  }
}

/// True if the reason differs from the last one there.
bool Links::note_failure(const Address& address, const std::string& why) {
  ++self_.counters.attempts_failed;
  table_.note_failure(address.text(), book_.node_at(address.text()), why);
  return book_.failed(address, why, self_.now(), self_.random);
}

// --- what becomes of links and nodes --------------------------------------------------------------------------------

void Links::describe(const NodeId& node, const std::string& name, const std::string& address, const std::string& host) {
  NodeRecord& record = *table_.find(node);
  record.name = name;
  record.address = dialable(address, host);
}

void Links::note_incarnation(const NodeId& node, std::uint64_t incarnation) {
  NodeRecord& record = *table_.find(node);
  const bool restarted = record.was_up && record.incarnation != incarnation;
  record.incarnation = incarnation;
  if (!restarted) return;
  if (const LinkPtr link = record.link) end(link, "the node has restarted");
  declare_dead(node);
}

void Links::bring_up(const LinkPtr& link) {
  NodeRecord* record = table_.find(link->node);
  GOSSAMER_CHECK(record != nullptr);
  if (const LinkPtr older = record->link) end(older, "replaced by a newer link");
  link->enter(LinkPhase::passing);
  link->up_since = link->last_heard = link->last_kept = self_.now();
  for (ChannelRecord& channel : link->channels)
    channel.heard = channel.beaten = channel.pinged = self_.now();
  link->budget.set_rate(self_.options.link_bytes_per_s);
  if (link->outgoing) link->bulk_descriptor = link->outgoing->bulk_descriptor();
  link->bulk_form =
      link->outgoing ? link->outgoing->bulk_form() : listener_.form_of(link->routing_ids[index_of(Channel::bulk)]);
  record->link = link;
  link->rights = agreement_.rights_of(link->node);
  record->last_error.clear();
  ++self_.counters.links_up;
  agreement_.link_up(link->node);
  book_.link_up(link->node, self_.now());
  self_.log->info("link to {} {} is up ({} dialled, {}{})", link->node.brief(), record->name,
                  link->dialled_by_us() ? "we" : "they", link->host,
                  link->bulk_form && !link->bulk_form->encrypts ? ", models are not encrypted" : "");
  if (!link->dialled_by_us()) roster_->seen_at(link->node, record->address);
  sender_.say(*link, Channel::control, BulkAck{});  // says that this node takes parts and acknowledges
  const std::string dialled = link->outgoing ? link->outgoing->address().text() : std::string{};
  const bool said_something = roster_->link_up(link->node, record->incarnation, dialled, self_.now());
  link->last_greeted = said_something ? self_.now() : self_.now() - self_.options.membership.probe_interval_us;
  follow_roster();
  if (!link->is_shown()) (void)tend_passing(*link);  // gives no reason to end: the link was needed just now
}

void Links::show(const LinkPtr& link) {
  link->enter(LinkPhase::shown);
  NodeRecord& record = *table_.find(link->node);
  record.was_up = true;
  record.dead = false;
  self_.turns->happened(LinkUp{link->node});
}

void Links::hide(const LinkPtr& link, const std::string& reason) {
  link->enter(LinkPhase::passing);
  table_.find(link->node)->last_error = reason;
  self_.turns->happened(LinkDown{link->node, reason});
}

void Links::end(const LinkPtr& link, const std::string& reason) {
  const bool was_up = link->is_up();
  if (link->is_shown()) hide(link, reason);
  link->enter(LinkPhase::ended);
  table_.remove(link);
  for (const std::string& routing_id : link->routing_ids)
    listener_.dismiss(routing_id);
  if (link->outgoing) link->outgoing->close(0);
  if (was_up) {
    NodeRecord* record = table_.find(link->node);
    GOSSAMER_CHECK(record != nullptr && record->link == link);
    record->link = nullptr;
    record->down_since = self_.now();
    record->last_error = reason;
    ++self_.counters.links_lost;
    agreement_.link_down(link->node);
    book_.link_down(link->node, self_.now(), self_.random);
    self_.log->info("link to {} {} is down: {}", link->node.brief(), record->name, reason);
    roster_->link_down(link->node, self_.now());
  } else if (NodeRecord* record = table_.find(link->node);
             record != nullptr && !link->dialled_by_us() && record->last_error.empty()) {
    record->last_error = reason;
  }
  // A denied node will not come back, so nothing should wait for it.
  const bool gone = was_up && roster_->membership().considers_gone(link->node);
  if (gone || agreement_.is_denied(link->node)) declare_dead(link->node);
}

void Links::end_those(const std::function<std::string(Link&)>& reason_of) {
  std::vector<std::pair<LinkPtr, std::string>> over;
  for (const LinkPtr& link : table_.links()) {
    if (std::string reason = reason_of(*link); !reason.empty()) over.emplace_back(link, std::move(reason));
  }
  for (const auto& [link, reason] : over)
    end(link, reason);
}

void Links::end_broken() {
  end_those([](const Link& link) { return link.broken; });
}

void Links::declare_dead(const NodeId& node) {
  NodeRecord* record = table_.find(node);
  if (record == nullptr || record->dead || !record->was_up) return;
  record->dead = true;
  self_.log->info("node {} {} is dead", node.brief(), record->name);
  self_.turns->happened(NodeDead{node});
}

// --- time passes ----------------------------------------------------------------------------------------------------

void Links::tick() {
  roster_->tick(self_.now());
  follow_roster();
  agreement_.tick();
  end_those([this](Link& link) { return tend(link); });
}

void Links::forgive_pause(TimeUs late) {
  for (const LinkPtr& link : table_.links()) {
    link->last_heard += late;
    for (ChannelRecord& channel : link->channels) {
      channel.heard += late;
      channel.beaten += late;
    }
    link->opened += late;
    link->last_kept += late;
  }
}

/// Gives the reason to end the link, if there is one.
std::string Links::tend(Link& link) {
  if (!link.is_up()) {
    // Each connection takes about five round trips; bulk is connected once the nodes have introduced themselves.
    const TimeUs connections = link.node == NodeId{} ? 1 : 2;
    if (self_.now() - link.opened < connections * self_.options.attempt_timeout_ms * us_per_ms) return {};
    if (!link.outgoing) return unfinished;
    const auto failure = link.outgoing->expire();
    if (!failure) return {};
    attempt_failed(*link.outgoing, *failure);
    return failure->text;
  }
  if (std::string silence = silence_of(link); !silence.empty()) return silence;
  const auto ping_every = [&](Channel channel, int interval_ms) {
    if (self_.now() - link.on(channel).pinged >= interval_ms * us_per_ms) sender_.ping(link, channel);
  };
  ping_every(Channel::bulk, self_.options.link_timeout_ms);
  ping_every(Channel::control, self_.options.ping_interval_ms);
  return link.is_shown() ? std::string{} : tend_passing(link);
}

/// Tends a link that is not kept: it leads to a node that is to become a member, or serves an errand. A node that knows
/// nobody assumes that whoever dials it knew it in an earlier run.
std::string Links::tend_passing(Link& link) {
  const bool alone = roster_->membership().view().empty();
  const bool contact = alone || (link.dialled_by_us() && !roster_->membership().partial());
  if (contact && self_.now() - link.last_greeted >= self_.options.membership.probe_interval_us) {
    link.last_greeted = self_.now();
    roster_->greet(link.node, self_.now());
  }
  return self_.now() - link.last_kept >= passing_link_us ? "no longer needed" : "";
}

/// Looks at each connection by itself: one may be dead while the other lives, and everything sent on the dead one would
/// be lost. Bulk has more time, because its heartbeats may be behind megabytes.
std::string Links::silence_of(const Link& link) const {
  const auto is_past = [&](TimeUs since, int limit_ms) { return self_.now() - since >= limit_ms * us_per_ms; };
  const int bulk_timeout_ms = bulk_patience * self_.options.link_timeout_ms;
  if (is_past(link.on(Channel::control).heard, self_.options.link_timeout_ms))
    return "silent for " + std::to_string(self_.options.link_timeout_ms) + " ms";
  if (is_past(link.on(Channel::bulk).heard, bulk_timeout_ms))
    return "its bulk connection has been silent for " + std::to_string(bulk_timeout_ms) + " ms";
  // Somebody on the way who takes messages away can take the heartbeats that would show it.
  if (std::ranges::any_of(link.channels, [&](const auto& channel) { return is_past(channel.beaten, bulk_timeout_ms); }))
    return "messages come, and no heartbeat for " + std::to_string(bulk_timeout_ms) + " ms: is there a proxy between?";
  return {};
}

void Links::probe_incoming() {
  for (const LinkPtr& link : table_.links()) {
    if (link->outgoing || !link->is_up()) continue;  // a link that is being made hears nothing but its welcomes
    for (const Channel channel : {Channel::control, Channel::bulk})
      sender_.ping(*link, channel);
  }
  end_broken();
}

// --- the roster -----------------------------------------------------------------------------------------------------

/// Does what the roster has decided in this turn: declares nodes dead, shows links that are kept now, and hides those
/// that are not kept any more.
void Links::follow_roster() {
  for (const Roster::MemberChange& change : roster_->take_changes())
    follow(change);
  for (const LinkPtr& link : table_.links()) {
    if (!link->is_up()) continue;
    const bool kept = roster_->keeps(link->node);
    if (kept) link->last_kept = self_.now();
    if (kept == link->is_shown()) continue;
    if (kept) {
      show(link);
    } else {
      const bool gone = roster_->membership().considers_gone(link->node);
      hide(link, gone ? "it is believed to be dead" : "it is not among this node's neighbours any more");
    }
  }
}

/// A reported death is not believed while there is a link to the node that is not silent. The report never means a life
/// that has just begun, since a node that comes back shows its new incarnation in its hello (note_incarnation()).
void Links::follow(const Roster::MemberChange& changed) {
  const auto& [node, change, own_word] = changed;
  if (change == Roster::Change::suspected || change == Roster::Change::refuted) {
    self_.log->debug("node {} is {}", node.brief(),
                     change == Roster::Change::suspected ? "suspected" : "heard of again");
  }
  const bool gone = change == Roster::Change::died || change == Roster::Change::left;
  if (!gone || !roster_->membership().considers_gone(node)) return;
  book_.forget(node);
  if (const LinkPtr link = table_.link_to(node)) {
    const bool silent = self_.now() - link->last_heard >= silent_pings * self_.options.ping_interval_ms * us_per_ms;
    if (!own_word && !silent) return;  // told when the link ends, unless the node has shown by then that it lives
    end(link, own_word ? "goodbye: the node leaves" : "it is dead");
  }
  declare_dead(node);
}

bool Links::send_membership(const NodeId& to, const MembershipMessage& message) {
  const LinkPtr link = table_.link_to(to);
  return link && link->broken.empty() && sender_.post(*link, Channel::control, encode(message)) == SendResult::sent;
}

std::string Links::seen_address(const NodeId& node) const {
  const NodeRecord* record = std::as_const(table_).find(node);
  return record == nullptr ? std::string{} : record->address;
}

// --- messages that come in ------------------------------------------------------------------------------------------

bool Links::receive(Arrival& arrival) {
  const auto* known = table_.on_connection(arrival.routing_id);
  if (known == nullptr) return false;
  const auto [link, channel] = *known;
  // Another connection can take over a routing id once its owner is gone, but not the key behind it.
  if (link->user_id != arrival.user_id) {
    end(link, "the connection ended");
    return false;
  }
  if (arrival.damaged) {
    end(link, broken_seal(link->host));
    return true;
  }
  deliver(link, channel, std::move(arrival.delivery));
  return true;
}

void Links::deliver(const LinkPtr& link, Channel channel, Delivery&& delivery) {
  link->last_heard = link->on(channel).heard = self_.now();
  ++link->on(channel).received;
  const std::size_t payload_bytes = delivery.frames.payload_bytes();
  for (Traffic* traffic : {&self_.counters.traffic, &table_.find(link->node)->traffic}) {
    ++traffic->messages_received;
    (channel == Channel::control ? traffic->control_bytes_received : traffic->bulk_bytes_received) += delivery.bytes;
    traffic->payload_bytes_received += payload_bytes;
  }
  if (delivery.too_many_frames) {
    if (channel == Channel::bulk) sender_.bulk_arrived(*link, delivery.bytes);
    return note_malformed(link, "too many frames");
  }
  auto packet = decode(delivery.frames);
  const bool is_control = packet && std::holds_alternative<ControlMessage>(*packet);
  if (channel == Channel::bulk && !is_control) sender_.bulk_arrived(*link, delivery.bytes);
  take(link, channel, std::move(packet));
}

void Links::take(const LinkPtr& link, Channel channel, std::expected<Packet, DecodeError>&& packet) {
  if (!packet && packet.error().kind == DecodeError::Kind::unknown) {
    ++self_.counters.unknown;
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
    roster_->receive(link->node, std::move(*membership), link->host, self_.now());
    return follow_roster();
  }
  if (const auto* part = std::get_if<BulkPart>(&*packet)) {
    if (channel != Channel::bulk) return note_malformed(link, "a part of a message on the control channel");
    take_part(link, *part);
    return;
  }
  Message& message = std::get<Message>(*packet);
  if (channel_of(message) != channel) return note_malformed(link, "a message on the wrong channel");
  table_.find(link->node)->was_up = true;
  link->last_kept = self_.now();
  self_.turns->happened(MessageReceived{link->node, std::move(message)});
}

void Links::take_part(const LinkPtr& link, const BulkPart& part) {
  auto message = link->assembly.add(part);
  if (!message) return note_malformed(link, message.error());
  if (!*message) return;
  auto packet = decode(**message);
  if (packet && !std::holds_alternative<Message>(*packet)) {
    return note_malformed(link, "the message that came in parts is not one of gossip's");
  }
  take(link, Channel::bulk, std::move(packet));
}

void Links::handle(const LinkPtr& link, Channel channel, ControlMessage&& message) {
  if (const auto* ping = std::get_if<Heartbeat>(&message)) {
    ChannelRecord& record = link->on(channel);
    record.beaten = self_.now();
    if (ping->messages != 0 && ping->messages != record.received)
      return end(link, fmt::format("{} messages were sent on the {} connection and {} arrived: somebody or something "
                                   "between takes messages away or repeats them",
                                   ping->messages, channel == Channel::bulk ? "bulk" : "control", record.received));
    sender_.say(*link, channel, HeartbeatEcho{ping->sent_at});
  } else if (const auto* pong = std::get_if<HeartbeatEcho>(&message)) {
    // The echo brings back the time that we sent. A time from the future, or from before the link was opened, is
    // ignored.
    if (channel != Channel::control || pong->sent_at < link->opened || pong->sent_at > self_.now()) return;
    const double measured_ms = static_cast<double>(self_.now() - pong->sent_at) / us_per_ms;
    constexpr double weight = 0.125;
    link->round_trip_ms += (link->round_trip_ms == 0 ? 1 : weight) * (measured_ms - link->round_trip_ms);
    link->last_round_trip_ms = measured_ms;
    link->pacing.round_trip(pong->sent_at, self_.now());
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
    agreement_.hear(link->node, *denials);
  } else if (auto* certificates = std::get_if<CertificateList>(&message)) {
    agreement_.hear(link->node, std::move(*certificates));
  } else if (const auto* deputies = std::get_if<DeputyList>(&message)) {
    agreement_.hear(link->node, *deputies);
  } else if (const auto* ring = std::get_if<RingState>(&message)) {
    agreement_.hear(link->node, *ring);
  } else if (const auto* ack = std::get_if<BulkAck>(&message)) {
    if (!sender_.acknowledged(*link, *ack)) note_malformed(link, "more bulk is acknowledged than was sent");
  } else {
    note_malformed(link, "a message of admission on an admitted connection");
  }
}

void Links::note_malformed(const LinkPtr& link, std::string_view why) {
  ++self_.counters.malformed;
  if (self_.log_throttle.take(self_.now())) self_.log->warn("malformed message from {}: {}", link->node.brief(), why);
  if (++link->malformed <= max_malformed_messages) return;
  if (NodeRecord* record = table_.find(link->node)) record->banned_until = self_.now() + misbehaviour_ban_us;
  sender_.say(*link, Channel::control, Rejected{RejectReason::misbehaved, "too many malformed messages"});
  end(link, "too many malformed messages");
}

}  // namespace gossamer::peer
