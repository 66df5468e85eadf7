#include "peer/overlay/overlay.hpp"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <algorithm>

#include "gossip/check.hpp"
#include "peer/links/interface.hpp"
#include "peer/overlay/strangers.hpp"
#include "peer/wire/validate.hpp"

namespace gossamer::peer {
namespace {

constexpr int stop_linger_ms = 500;
/// A tick this much late means that this process was stopped or starved; the others were not silent, we were deaf.
constexpr TimeUs own_pause_us = 500 * us_per_ms;

/// Strangers leave three quarters of the descriptors to links and clients.
std::size_t most_strangers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return max_strangers;
  return std::clamp<rlim_t>(limit.rlim_cur / 4, 1, max_strangers);
}

AddressBookOptions book_options(const OverlaySettings& options) {
  AddressBookOptions book;
  book.backoff_least_us = options.backoff_least_ms * us_per_ms;
  book.backoff_most_us = options.backoff_most_ms * us_per_ms;
  return book;
}

std::expected<std::vector<Address>, std::string> parse_all(const std::vector<std::string>& texts) {
  if (texts.size() > max_members) return std::unexpected("more than " + std::to_string(max_members) + " peers");
  std::vector<Address> addresses;
  for (const std::string& text : texts) {
    auto address = parse_address(text, AddressUse::dial);
    if (!address) return std::unexpected("peer " + address.error());
    addresses.push_back(std::move(*address));
  }
  return addresses;
}

}  // namespace

// What runs the parts, and in which order they see a turn. Each may know those above it.
struct Overlay::Parts {
  Parts(asio::io_context& loop, const OverlaySettings& options, Identity identity, KeyRing keys, OverlayEvents& owner,
        std::shared_ptr<spdlog::logger> log, gossip::Random random, const Clock& clock, Clock time_of_day);

  [[nodiscard]] std::expected<void, std::string> start();
  [[nodiscard]] Listener::Handlers handlers(Clock clock);
  void note_closing(const Connections::Closing& closing);
  void schedule_tick();
  void tick();
  void forgive_own_pause();
  void close(int linger_ms);

  OverlaySelf self;
  asio::steady_timer timer;
  TimeUs last_tick = 0;
  bool probe_wanted = false;
  Listener listener;
  AddressBook book;
  LinkTable table;
  Sender sender;
  OwnAddress own_address;
  Agreement agreement;
  Links links;
  Strangers strangers;
};

Overlay::Parts::Parts(asio::io_context& loop, const OverlaySettings& options, Identity identity, KeyRing keys,
                      OverlayEvents& owner, std::shared_ptr<spdlog::logger> log, gossip::Random random,
                      const Clock& clock, Clock time_of_day)
    : self{.loop = loop,
           .options = options,
           .identity = std::move(identity),
           .owner = owner,
           .log = std::move(log),
           .random = random,
           .time_of_day = std::move(time_of_day),
           .turns = std::make_shared<Turns>(loop, clock, owner),
           .zmq = zmq::context_t(options.io_threads)},
      timer(loop),
      listener(loop, self.zmq, handlers(clock)),
      book(book_options(self.options), self.identity.node),
      sender(self, table, listener, [this] { links.end_broken(); }),
      own_address(self),
      agreement(self, table, sender, listener, std::move(keys)),
      links(self, table, sender, listener, book, agreement, own_address),
      strangers(self, table, links, listener, agreement, own_address) {
  GOSSAMER_CHECK(self.log != nullptr && clock != nullptr && self.time_of_day != nullptr);
}

Listener::Handlers Overlay::Parts::handlers(Clock clock) {
  const auto arrived = [this](Arrival&& arrival) {
    self.turns->run([&] {
      if (!links.receive(arrival)) strangers.receive(std::move(arrival));
    });
  };
  const auto handshake_failed = [this] {
    ++self.counters.handshakes_failed;
    if (!self.log_throttle.take(self.now())) return;
    self.log->warn(
        "a connection to our port failed its handshake: a node with another cluster key, or no Gossamer node");
  };
  return {.arrived = arrived,
          .lost_connection = [this] { probe_wanted = true; },
          .handshake_failed = handshake_failed,
          .closing = [this](const Connections::Closing& closing) { note_closing(closing); },
          .now = std::move(clock)};
}

Overlay::Overlay(asio::io_context& loop, OverlaySettings options, Identity identity, KeyRing keys,
                 OverlayEvents& events, std::shared_ptr<spdlog::logger> log, gossip::Random random, Clock clock,
                 Clock time_of_day)
    : parts_(std::make_unique<Parts>(loop, std::move(options), std::move(identity), std::move(keys), events,
                                     std::move(log), random, clock, std::move(time_of_day))) {}
Overlay::~Overlay() {
  parts_->close(0);
}

// --- start, stop, and the turns of the timer -------------------------------------------------------------------------

std::expected<void, std::string> Overlay::start() {
  return parts_->start();
}

std::expected<void, std::string> Overlay::Parts::start() {
  GOSSAMER_CHECK(!self.turns->stopped());
  OverlaySettings& options = self.options;
  if (!is_plain_text(options.name, max_name_bytes)) {
    return std::unexpected("the node's name is longer than " + std::to_string(max_name_bytes) +
                           " bytes or not plain UTF-8");
  }
  sender.set_rates(options.bytes_per_s, options.link_bytes_per_s);
  options.max_links = std::clamp<std::size_t>(options.max_links, 1, max_links);
  options.membership.full_view_limit = std::min(options.membership.full_view_limit, options.max_links);
  options.membership.active_view = std::min(options.membership.active_view, options.max_links);
  const auto listen = parse_address(options.listen, AddressUse::listen);
  if (!listen) return std::unexpected("listen " + listen.error());
  last_tick = self.turns->read_clock();
  agreement.start();
  const auto peers = parse_all(options.peers);
  if (!peers) return std::unexpected(peers.error());
  agreement.set_denied(options.denied);
  if (auto usable = check_interface(options.interface); !usable) return usable;
  const int high_water = std::max(options.control_high_water_messages, options.bulk_high_water_messages);
  listener.set_silence(options.link_timeout_ms);
  listener.set_interface(options.interface);
  listener.limit_strangers(std::min(options.max_strangers, most_strangers()), options.stranger_patience_us);
  if (auto started = listener.start(*listen, agreement.keys().first(), high_water); !started) return started;
  if (auto set = own_address.set(options.advertise, listener.address()); !set) return std::unexpected(set.error());
  links.start();
  for (const std::string& text : options.remembered) {
    if (const auto address = parse_address(text, AddressUse::dial)) book.remember(*address, self.now());
  }
  book.set_configured(*peers, self.now());
  links.tell_contacts();
  self.log->info("node {} listens at {}", self.identity.node.brief(), listener.address().text());
  links.dial_due();
  schedule_tick();
  return {};
}

void Overlay::Parts::note_closing(const Connections::Closing& closing) {
  ++self.counters.strangers_closed;
  if (!self.log_throttle.take(self.now())) return;
  if (closing.late) {
    self.log->info("closed a connection from {}: it was not admitted in time", closing.end.host);
  } else {
    self.log->warn("closed a connection from {}: too many are not admitted, most of them from there", closing.end.host);
  }
}

void Overlay::stop() {
  if (parts_->self.turns->stopped()) return;
  parts_->self.turns->read_clock();
  parts_->links.leave();
  parts_->close(stop_linger_ms);
}

void Overlay::Parts::close(int linger_ms) {
  if (self.turns->stopped()) return;
  self.turns->stop();
  timer.cancel();
  sender.close();
  links.close(linger_ms);
  agreement.close();
  listener.close(linger_ms);
}

void Overlay::Parts::schedule_tick() {
  self.turns->after(timer, std::chrono::milliseconds(self.options.tick_ms), [this] {
    tick();
    schedule_tick();
  });
}

void Overlay::Parts::tick() {
  forgive_own_pause();
  listener.tend();
  links.end_broken();
  if (std::exchange(probe_wanted, false)) links.probe_incoming();
  links.tick();
  if (own_address.tick(book)) links.roster()->relocate(own_address.text());
  links.dial_due();
  sender.tick();
}

void Overlay::Parts::forgive_own_pause() {
  const TimeUs late = self.now() - last_tick - self.options.tick_ms * us_per_ms;
  last_tick = self.now();
  if (late < own_pause_us) return;
  self.log->debug("this process paused for {} ms", late / us_per_ms);
  links.forgive_pause(late);
}

// --- what the user asks for ------------------------------------------------------------------------------------------

std::expected<void, std::string> Overlay::set_peers(const std::vector<std::string>& addresses) {
  const auto parsed = parse_all(addresses);
  if (!parsed) return std::unexpected(parsed.error());
  parts_->book.set_configured(*parsed, parts_->self.turns->read_clock());
  parts_->links.tell_contacts();
  return {};
}

std::expected<void, std::string> Overlay::add_peer(const std::string& address) {
  const auto parsed = parse_address(address, AddressUse::dial);
  if (!parsed) return std::unexpected("peer " + parsed.error());
  parts_->book.add_configured(*parsed, parts_->self.turns->read_clock());
  parts_->links.tell_contacts();
  return {};
}

std::expected<void, std::string> Overlay::set_advertise(const std::string& wish) {
  GOSSAMER_CHECK(parts_->links.roster().has_value());
  const auto changed = parts_->own_address.set(wish, parts_->listener.address());
  if (!changed) return std::unexpected(changed.error());
  if (!*changed) return {};
  const std::string& address = parts_->own_address.text();
  parts_->self.log->info("others are told to dial this node at {}", address.empty() ? "no address" : address);
  parts_->links.roster()->relocate(address);
  return {};
}

void Overlay::set_denied(const std::vector<NodeId>& nodes) {
  parts_->agreement.set_denied(nodes);
}
std::expected<Denial, std::string> Overlay::decide(const NodeId& node, bool denied, const std::string& reason) {
  return parts_->agreement.decide(node, denied, reason);
}
std::expected<Fingerprint, std::string> Overlay::rotate_key() {
  return parts_->agreement.rotate_key();
}
std::expected<void, std::string> Overlay::retire_key(const Fingerprint& fingerprint) {
  return parts_->agreement.retire_key(fingerprint);
}
std::expected<std::string, std::string> Overlay::invite(TimeUs validity_us, std::vector<Address> addresses) {
  return parts_->agreement.invite(validity_us, std::move(addresses), parts_->own_address.text());
}

std::expected<void, std::string> Overlay::join(const Invitation& invitation, Joined joined) {
  const auto ended = [parts = parts_.get(), addresses = invitation.addresses,
                      joined = std::move(joined)](std::expected<void, std::string> result) {
    if (result) {
      for (const Address& address : addresses)
        parts->book.add_configured(address, parts->self.now());
      parts->links.tell_contacts();
    }
    parts->self.turns->happened(JoinEnded{joined, std::move(result)});
  };
  return parts_->agreement.join(invitation, ended);
}

void Overlay::set_rates(double bytes_per_s, double link_bytes_per_s) {
  parts_->sender.set_rates(bytes_per_s, link_bytes_per_s);
}
SendResult Overlay::send(const NodeId& to, const Message& message) {
  return parts_->sender.send(to, message);
}

// --- what the user is shown ------------------------------------------------------------------------------------------

bool Overlay::settled() const {
  return parts_->links.settled();
}

std::vector<KnownMember> Overlay::members() const {
  std::vector<KnownMember> all;
  const auto& roster = parts_->links.roster();
  if (!roster) return all;
  for (const gossip::Membership::Member& member : roster->membership().members()) {
    KnownMember status;
    status.node = member.record.node;
    status.address = member.record.address;
    status.incarnation = member.record.incarnation;
    status.suspected = member.suspected;
    status.last_heard = member.last_heard_us;
    if (const NodeRecord* record = parts_->table.find(status.node)) {
      status.name = record->name;
      status.linked = record->link != nullptr;
      if (status.linked) status.last_heard = std::max(status.last_heard, record->link->last_heard);
    }
    all.push_back(std::move(status));
  }
  return all;
}

MembershipStatus Overlay::membership() const {
  const auto& roster = parts_->links.roster();
  if (!roster) return {};
  const gossip::Membership& membership = roster->membership();
  return {.partial = membership.partial(),
          .members = membership.members().size(),
          .view = membership.view().size(),
          .passive = membership.passive_view().size(),
          .incarnation = membership.self().incarnation,
          .health = membership.health_score(),
          .counters = membership.counters()};
}

std::vector<LinkStatus> Overlay::links() const {
  std::vector<LinkStatus> all;
  const auto& roster = parts_->links.roster();
  for (const auto& [node, record] : parts_->table.nodes()) {
    LinkStatus status;
    status.node = node;
    status.name = record.name;
    const gossip::Membership::Member* member = roster ? roster->membership().find(node) : nullptr;
    status.address = member != nullptr ? member->record.address : record.address;
    status.dead = record.dead;
    status.traffic = record.traffic;
    status.messages_sent = record.traffic.messages_sent;
    status.messages_received = record.traffic.messages_received;
    status.bytes_sent = record.traffic.control_bytes_sent + record.traffic.bulk_bytes_sent;
    status.bytes_received = record.traffic.control_bytes_received + record.traffic.bulk_bytes_received;
    status.last_error = record.last_error;
    if (record.link) {
      status.up = record.link->is_shown();
      status.passing = !record.link->is_shown();
      status.dialled_by_us = record.link->dialled_by_us();
      status.features = record.link->features;
      status.round_trip_ms = record.link->round_trip_ms;
      status.last_round_trip_ms = record.link->last_round_trip_ms;
      status.up_since = record.link->up_since;
      status.least_round_trip_ms = static_cast<double>(record.link->pacing.least_delay_us()) / us_per_ms;
      status.goodput_bytes_s = record.link->pacing.goodput(parts_->self.turns->read_clock());
      status.queued_bytes = record.link->waiting.bytes() + record.link->meter->load(std::memory_order_relaxed);
      status.under_way_bytes = record.link->pacing.under_way_bytes();
    }
    all.push_back(std::move(status));
  }
  for (const auto& [text, entry] : parts_->book.entries()) {
    if (!entry.configured || entry.node) continue;
    LinkStatus status;
    status.address = text;
    status.last_error = entry.last_error;
    all.push_back(std::move(status));
  }
  return all;
}

OverlayCounters Overlay::counters() const {
  return parts_->self.counters;
}
std::string Overlay::address() const {
  return parts_->listener.address().text();
}
const NodeId& Overlay::node() const {
  return parts_->self.identity.node;
}
const Denials& Overlay::denials() const {
  return parts_->agreement.denials();
}
std::vector<KeyStatus> Overlay::key_ring() const {
  return parts_->agreement.key_ring();
}
double Overlay::goodput_bytes_s() const {
  return parts_->sender.goodput_bytes_s();
}
gossip::LinkLoad Overlay::load(const NodeId& node) const {
  return parts_->sender.load(node);
}

}  // namespace gossamer::peer
