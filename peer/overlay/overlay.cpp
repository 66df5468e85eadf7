#include "peer/overlay/overlay.hpp"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <algorithm>

#include "gossip/check.hpp"
#include "gossip/plain_text.hpp"
#include "peer/links/interface.hpp"
#include "peer/overlay/strangers.hpp"

namespace gossamer::peer {
namespace {

constexpr int stop_linger_ms = 500;
/// A tick this much late means that this process was stopped or starved. Then the others were not silent: this node
/// could not hear them.
constexpr TimeUs own_pause_us = 500 * us_per_ms;

/// Strangers may use a quarter of the descriptors. The rest is for links and clients.
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

Overlay::Overlay(asio::io_context& loop, const OverlaySettings& options, Identity identity, KeyRing keys,
                 OverlayEvents& events, std::shared_ptr<spdlog::logger> log, gossip::Random random,
                 const OverlayClock& clock, OverlayClock time_of_day)
    : self_{.loop = loop,
            .options = options,
            .identity = std::move(identity),
            .owner = events,
            .log = std::move(log),
            .random = random,
            .time_of_day = std::move(time_of_day),
            .turns = std::make_shared<Turns>(loop, clock, events),
            .zmq = zmq::context_t(options.io_threads),
            .seal_threads = options.seal_threads == 0
                                ? nullptr
                                : std::make_shared<SealThreads>(loop, static_cast<std::size_t>(options.seal_threads))},
      timer_(loop),
      listener_(loop, self_.zmq, handlers(clock)),
      book_(book_options(self_.options), self_.identity.node),
      sender_(self_, table_, listener_, [this] { links_.end_broken(); }),
      own_address_(self_),
      agreement_(self_, table_, sender_, listener_, std::move(keys)),
      links_(self_, table_, sender_, listener_, book_, agreement_, own_address_),
      strangers_(self_, table_, links_, listener_, agreement_, own_address_) {
  GOSSAMER_CHECK(self_.log != nullptr && clock != nullptr && self_.time_of_day != nullptr);
}

Listener::Handlers Overlay::handlers(OverlayClock clock) {
  const auto arrived = [this](Arrival&& arrival) {
    self_.turns->run([&] {
      if (!links_.receive(arrival)) strangers_.receive(std::move(arrival));
    });
  };
  return {
      .arrived = arrived,
      .lost_connection = [this] { probe_wanted_ = true; },
      .handshake_failed = [this](const std::string& host, HandshakeFailure why) { note_failed_handshake(host, why); },
      .denied = [this](const NodeId& node, const std::string& host) { note_denied(node, host); },
      .closing = [this](const Connections::Closing& closing) { note_closing(closing); },
      .now = std::move(clock)};
}

// --- start, stop, and the turns of the timer -------------------------------------------------------------------------

std::expected<void, std::string> Overlay::start() {
  GOSSAMER_CHECK(!self_.turns->stopped());
  OverlaySettings& options = self_.options;
  if (!is_plain_text(options.name, max_name_bytes)) {
    return std::unexpected("the node's name must be " + plain_text_rule(max_name_bytes));
  }
  options.features &= features_of(options.bulk);
  sender_.set_rates(options.bytes_per_s, options.link_bytes_per_s);
  options.max_links = std::clamp<std::size_t>(options.max_links, 1, max_links);
  options.membership.full_view_limit = std::min(options.membership.full_view_limit, options.max_links);
  options.membership.active_view = std::min(options.membership.active_view, options.max_links);
  const auto listen = parse_address(options.listen, AddressUse::listen);
  if (!listen) return std::unexpected("listen " + listen.error());
  last_tick_ = self_.turns->read_clock();
  agreement_.start();
  const auto peers = parse_all(options.peers);
  if (!peers) return std::unexpected(peers.error());
  agreement_.set_denied(options.denied);
  if (auto usable = check_interface(options.interface); !usable) return usable;
  const int high_water = std::max(options.control_high_water_messages, options.bulk_high_water_messages);
  listener_.set_silence(options.link_timeout_ms);
  listener_.set_interface(options.interface);
  listener_.set_seal_threads(self_.seal_threads);
  listener_.limit_strangers(std::min(options.max_strangers, most_strangers()), options.stranger_patience_us);
  const bool sealed = (options.features & feature_sealed_bulk) != 0;
  if (auto started = listener_.start(*listen, agreement_.keys().first(), high_water, sealed); !started) return started;
  if (auto set = own_address_.set(options.advertise, listener_.address()); !set) return std::unexpected(set.error());
  links_.start();
  for (const std::string& text : options.remembered) {
    if (const auto address = parse_address(text, AddressUse::dial)) book_.remember(*address, self_.now());
  }
  book_.set_configured(*peers, self_.now());
  links_.tell_contacts();
  self_.log->info("node {} listens at {}", self_.identity.node.brief(), listener_.address().text());
  links_.dial_due();
  schedule_tick();
  return {};
}

/// True if the log has not told of this node or host yet, and is to do so now. After max_told of them, all are
/// forgotten.
bool Overlay::is_news(const std::string& who) {
  if (told_.contains(who) || !self_.log_throttle.take(self_.now())) return false;
  if (told_.size() >= max_told) told_.clear();
  told_.insert(who);
  return true;
}

void Overlay::note_failed_handshake(const std::string& host, HandshakeFailure why) {
  const std::string from = host.empty() ? "an address that could not be read in time" : host;
  ++self_.counters.handshakes_failed;
  if (why == HandshakeFailure::other_key) {
    ++self_.counters.admissions_refused;
    if (self_.log_throttle.take(self_.now()))
      self_.log->warn(
          "turned away a connection from {}: a node with another cluster key; if it belongs to this cluster, it needs "
          "an invitation (gossamerctl invite here, gossamerctl join there)",
          from);
    return;
  }
  if (!is_news(host)) return;
  self_.log->warn(
      "{} at {} takes our port for another service's: it connects and does not speak as a node does; look there for a "
      "client that has this address (told once for each host, counted always)",
      why == HandshakeFailure::unencrypted ? "a ZeroMQ program" : "a program", from);
}

void Overlay::note_denied(const NodeId& node, const std::string& host) {
  ++self_.counters.admissions_refused;
  if (is_news(node.full()))
    self_.log->warn("turned away node {} at {}: it is denied (gossamerctl denials); told once", node.brief(), host);
}

void Overlay::note_closing(const Connections::Closing& closing) {
  ++self_.counters.strangers_closed;
  if (!self_.log_throttle.take(self_.now())) return;
  switch (closing.why) {
    case Connections::Closing::Why::late:
      return self_.log->info("closed a connection from {}: it was not admitted in time", closing.end.host);
    case Connections::Closing::Why::too_much:
      return self_.log->info("closed a connection from {}: it sent much, and was not admitted", closing.end.host);
    case Connections::Closing::Why::too_many:
      return self_.log->warn("closed a connection from {}: too many are not admitted, and no address has more of them",
                             closing.end.host);
  }
}

void Overlay::stop() {
  if (self_.turns->stopped()) return;
  self_.turns->read_clock();
  links_.leave();
  close(stop_linger_ms);
}

void Overlay::close(int linger_ms) {
  if (self_.turns->stopped()) return;
  self_.turns->stop();
  timer_.cancel();
  sender_.close();
  links_.close(linger_ms);
  agreement_.close();
  listener_.close(linger_ms);
}

void Overlay::schedule_tick() {
  self_.turns->after(timer_, std::chrono::milliseconds(self_.options.tick_ms), [this] {
    tick();
    schedule_tick();
  });
}

void Overlay::tick() {
  forgive_own_pause();
  listener_.tend();
  links_.end_broken();
  if (std::exchange(probe_wanted_, false)) links_.probe_incoming();
  links_.tick();
  if (own_address_.tick(book_)) links_.roster()->relocate(own_address_.text());
  links_.dial_due();
  sender_.tick();
}

void Overlay::forgive_own_pause() {
  const TimeUs late = self_.now() - last_tick_ - self_.options.tick_ms * us_per_ms;
  last_tick_ = self_.now();
  if (late < own_pause_us) return;
  self_.log->debug("this process paused for {} ms", late / us_per_ms);
  links_.forgive_pause(late);
}

// --- what the user asks for ------------------------------------------------------------------------------------------

std::expected<void, std::string> Overlay::set_peers(const std::vector<std::string>& addresses) {
  const auto parsed = parse_all(addresses);
  if (!parsed) return std::unexpected(parsed.error());
  book_.set_configured(*parsed, self_.turns->read_clock());
  links_.tell_contacts();
  return {};
}

std::expected<void, std::string> Overlay::set_advertise(const std::string& wish) {
  GOSSAMER_CHECK(links_.roster().has_value());
  const auto changed = own_address_.set(wish, listener_.address());
  if (!changed) return std::unexpected(changed.error());
  if (!*changed) return {};
  const std::string& address = own_address_.text();
  self_.log->info("others are told to dial this node at {}", address.empty() ? "no address" : address);
  links_.roster()->relocate(address);
  return {};
}

std::expected<void, std::string> Overlay::join(const Invitation& invitation, Joined joined) {
  const auto ended = [this, addresses = invitation.addresses,
                      joined = std::move(joined)](std::expected<void, std::string> result) {
    if (result) {
      for (const Address& address : addresses)
        book_.add_configured(address, self_.now());
      links_.tell_contacts();
    }
    self_.turns->happened(JoinEnded{joined, std::move(result)});
  };
  return agreement_.join(invitation, ended);
}

// --- what the user is shown ------------------------------------------------------------------------------------------

std::vector<KnownMember> Overlay::members() const {
  std::vector<KnownMember> all;
  const auto& roster = links_.roster();
  if (!roster) return all;
  for (const gossip::Membership::Member& member : roster->membership().members()) {
    KnownMember status;
    status.node = member.record.node;
    status.address = member.record.address;
    status.incarnation = member.record.incarnation;
    status.suspected = member.suspected;
    status.last_heard = member.last_heard_us;
    if (const NodeRecord* record = table_.find(status.node)) {
      status.name = record->name;
      status.linked = record->link != nullptr;
      if (status.linked) status.last_heard = std::max(status.last_heard, record->link->last_heard);
    }
    all.push_back(std::move(status));
  }
  return all;
}

std::string Overlay::name_of(const NodeId& node) const {
  const NodeRecord* record = table_.find(node);
  return record == nullptr ? "" : record->name;
}

MembershipStatus Overlay::membership() const {
  const auto& roster = links_.roster();
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

std::size_t Overlay::certified_members() const {
  const auto& roster = links_.roster();
  if (!roster || !agreement_.asks_for_certificates()) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(roster->membership().members(), [this](const auto& member) {
    return agreement_.certificate_of(member.record.node) != nullptr;
  }));
}

std::vector<LinkStatus> Overlay::links() const {
  std::vector<LinkStatus> all;
  const auto& roster = links_.roster();
  for (const auto& [node, record] : table_.nodes()) {
    LinkStatus status;
    status.node = node;
    status.name = record.name;
    const gossip::Membership::Member* member = roster ? roster->membership().find(node) : nullptr;
    status.address = member != nullptr ? member->record.address : record.address;
    status.dead = record.dead;
    status.traffic = record.traffic;
    status.last_error = record.last_error;
    if (record.link) {
      status.up = record.link->is_shown();
      status.passing = !record.link->is_shown();
      status.dialled_by_us = record.link->dialled_by_us();
      status.features = record.link->features;
      if (const auto& form = record.link->bulk_form)
        status.bulk = form->encrypts ? BulkProtection::sealed : BulkProtection::plain;
      status.round_trip_ms = record.link->round_trip_ms;
      status.last_round_trip_ms = record.link->last_round_trip_ms;
      status.up_since = record.link->up_since;
      status.least_round_trip_ms = static_cast<double>(record.link->pacing.least_delay_us()) / us_per_ms;
      status.goodput_bytes_s = record.link->pacing.goodput(self_.turns->read_clock());
      status.queued_bytes = record.link->waiting.bytes() + record.link->meter->load(std::memory_order_relaxed);
      status.under_way_bytes = record.link->pacing.under_way_bytes();
    }
    all.push_back(std::move(status));
  }
  for (const auto& [text, entry] : book_.entries()) {
    if (!entry.configured || entry.node) continue;
    LinkStatus status;
    status.address = text;
    status.last_error = entry.last_error;
    all.push_back(std::move(status));
  }
  return all;
}

}  // namespace gossamer::peer
