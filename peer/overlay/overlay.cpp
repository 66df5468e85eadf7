#include "peer/overlay/overlay.hpp"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <algorithm>

#include "gossip/check.hpp"
#include "peer/links/interface.hpp"
#include "peer/overlay/links.hpp"
#include "peer/wire/validate.hpp"

namespace gossamer::peer {
namespace {

constexpr int stop_linger_ms = 500;
/// A tick this much late means that this process was stopped or starved; the others were not silent, we were deaf.
constexpr TimeUs own_pause_us = 500 * us_per_ms;
/// A bulk connection may be silent for this many times link_timeout_ms.
constexpr int bulk_patience = 10;
/// Attempts under way at a time leave room for links that others dial.
constexpr std::size_t attempts_per_tick = 8;

/// Strangers leave three quarters of the descriptors to links and clients.
std::size_t most_strangers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return max_strangers;
  return std::clamp<rlim_t>(limit.rlim_cur / 4, 1, max_strangers);
}

AddressBookOptions book_options(const OverlayOptions& options) {
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

// ---- the public face -----------------------------------------------------------------------------------------------

Overlay::Overlay(asio::io_context& loop, OverlayOptions options, Identity identity, KeyRing keys, OverlayEvents& events,
                 std::shared_ptr<spdlog::logger> log, gossip::Random random, Clock clock, Clock time_of_day)
    : core_(std::make_unique<Core>(loop, std::move(options), std::move(identity), std::move(keys), events,
                                   std::move(log), random, std::move(clock), std::move(time_of_day))) {}
Overlay::~Overlay() {
  core_->close(0);
}

std::expected<void, std::string> Overlay::start() {
  return core_->start();
}
SendResult Overlay::send(const NodeId& to, const Message& message) {
  return core_->send(to, message);
}
bool Overlay::settled() const {
  return core_->settled();
}
std::vector<LinkStatus> Overlay::links() const {
  return core_->links();
}
std::vector<MemberStatus> Overlay::members() const {
  return core_->members();
}
MembershipStatus Overlay::membership() const {
  return core_->membership();
}
OverlayCounters Overlay::counters() const {
  return core_->counters();
}
std::string Overlay::address() const {
  return core_->address();
}
const NodeId& Overlay::node() const {
  return core_->node();
}
std::expected<void, std::string> Overlay::add_peer(const std::string& address) {
  return core_->add_peer(address);
}
std::expected<void, std::string> Overlay::set_peers(const std::vector<std::string>& addresses) {
  return core_->set_peers(addresses);
}
std::expected<void, std::string> Overlay::set_advertise(const std::string& wish) {
  return core_->set_advertise(wish);
}
void Overlay::set_denied(const std::vector<NodeId>& nodes) {
  core_->set_denied(nodes);
}
std::expected<Denial, std::string> Overlay::decide(const NodeId& node, bool denied, const std::string& reason) {
  return core_->decide(node, denied, reason);
}
const Denials& Overlay::denials() const {
  return core_->denials();
}
std::vector<KeyStatus> Overlay::key_ring() const {
  return core_->key_ring();
}
std::expected<Fingerprint, std::string> Overlay::rotate_key() {
  return core_->rotate_key();
}
std::expected<void, std::string> Overlay::retire_key(const Fingerprint& fingerprint) {
  return core_->retire_key(fingerprint);
}
std::expected<std::string, std::string> Overlay::invite(TimeUs validity_us, std::vector<Address> addresses) {
  return core_->invite(validity_us, std::move(addresses));
}
std::expected<void, std::string> Overlay::join(const Invitation& invitation, Joined joined) {
  return core_->join(invitation, std::move(joined));
}
double Overlay::goodput_bytes_s() const {
  return core_->goodput_bytes_s();
}
gossip::LinkLoad Overlay::load(const NodeId& node) const {
  return core_->load(node);
}
void Overlay::set_rates(double bytes_per_s, double link_bytes_per_s) {
  core_->set_rates(bytes_per_s, link_bytes_per_s);
}
void Overlay::stop() {
  core_->stop();
}

// ---- start and stop ------------------------------------------------------------------------------------------------

Overlay::Core::Core(asio::io_context& loop, OverlayOptions options, Identity identity, KeyRing keys,
                    OverlayEvents& events, std::shared_ptr<spdlog::logger> log, gossip::Random random, Clock clock,
                    Clock time_of_day)
    : loop_(loop),
      options_(std::move(options)),
      identity_(std::move(identity)),
      keys_(keys.cluster_keys()),
      owner_(events),
      log_(std::move(log)),
      random_(random),
      time_of_day_(std::move(time_of_day)),
      turns_(std::make_shared<Turns>(loop, clock, events)),
      context_(options_.io_threads),
      timer_(loop),
      bulk_timer_(loop),
      listener_(loop, context_,
                {.arrived = [this](Arrival&& arrival) { turns_->run([&] { arrived(std::move(arrival)); }); },
                 .lost_connection = [this] { probe_wanted_ = true; },
                 .handshake_failed =
                     [this] {
                       ++counters_.handshakes_failed;
                       if (log_throttle_.take(now())) {
                         log_->warn(
                             "a connection to our port failed its handshake: a node with another cluster key, or "
                             "no Gossamer node");
                       }
                     },
                 .closing = [this](const Connections::Closing& closing) { note_closing(closing); },
                 .now = clock}),
      book_(book_options(options_), identity_.node),
      spread_(std::move(keys), options_.denials) {
  GOSSAMER_CHECK(log_ != nullptr && clock != nullptr && time_of_day_ != nullptr);
}

Overlay::Core::~Core() {
  close(0);
}

std::expected<void, std::string> Overlay::Core::start() {
  GOSSAMER_CHECK(!turns_->stopped());
  if (!is_plain_text(options_.name, max_name_bytes)) {
    return std::unexpected("the node's name is longer than " + std::to_string(max_name_bytes) +
                           " bytes or not plain UTF-8");
  }
  set_rates(options_.bytes_per_s, options_.link_bytes_per_s);
  options_.max_links = std::clamp<std::size_t>(options_.max_links, 1, max_links);
  options_.membership.full_view_limit = std::min(options_.membership.full_view_limit, options_.max_links);
  options_.membership.active_view = std::min(options_.membership.active_view, options_.max_links);
  const auto listen = parse_address(options_.listen, AddressUse::listen);
  if (!listen) return std::unexpected("listen " + listen.error());
  last_tick_ = started_at_ = turns_->read_clock();
  if (const auto peers = parse_all(options_.peers); !peers) return std::unexpected(peers.error());
  set_denied(options_.denied);
  if (auto usable = check_interface(options_.interface); !usable) return usable;
  const int high_water = std::max(options_.control_high_water_messages, options_.bulk_high_water_messages);
  listener_.set_silence(options_.link_timeout_ms);
  listener_.set_interface(options_.interface);
  listener_.limit_strangers(std::min(options_.max_strangers, most_strangers()), options_.stranger_patience_us);
  if (auto started = listener_.start(*listen, keys_.first(), high_water); !started) return started;
  auto own_address = address_to_tell(options_.advertise);
  if (!own_address) return std::unexpected(own_address.error());
  advertised_ = std::move(*own_address);
  Roster::Host& host = *this;
  roster_.emplace(options_.membership,
                  MemberRecord{identity_.node, options_.incarnation, advertised_.empty(), advertised_},
                  gossip::Random(random_.next()), now(), host);
  for (const std::string& text : options_.remembered) {
    if (const auto address = parse_address(text, AddressUse::dial)) book_.remember(*address, now());
  }
  if (auto set = set_peers(options_.peers); !set) return set;
  log_->info("node {} listens at {}", identity_.node.brief(), listener_.address().text());
  dial_due();
  schedule_tick();
  return {};
}

void Overlay::Core::note_closing(const Connections::Closing& closing) {
  ++counters_.strangers_closed;
  if (!log_throttle_.take(now())) return;
  if (closing.late) {
    log_->info("closed a connection from {}: it was not admitted in time", closing.end.host);
  } else {
    log_->warn("closed a connection from {}: too many are not admitted, most of them from there", closing.end.host);
  }
}

void Overlay::Core::stop() {
  if (turns_->stopped()) return;
  if (roster_) roster_->leave(turns_->read_clock());
  for (const LinkPtr& link : links_) {
    if (link->is_up()) say(*link, Channel::control, Goodbye{"the node stops"});
  }
  close(stop_linger_ms);
}

void Overlay::Core::close(int linger_ms) {
  if (turns_->stopped()) return;
  turns_->stop();
  timer_.cancel();
  bulk_timer_.cancel();
  for (const LinkPtr& link : links_) {
    if (link->outgoing) link->outgoing->close(linger_ms);
  }
  links_.clear();
  for (auto& [node, record] : nodes_)
    record.link = nullptr;
  if (claim_) claim_->close();
  listener_.close(linger_ms);
}

// --- what the user asks for ----------------------------------------------------------------------------------------

std::expected<void, std::string> Overlay::Core::set_peers(const std::vector<std::string>& addresses) {
  const auto parsed = parse_all(addresses);
  if (!parsed) return std::unexpected(parsed.error());
  book_.set_configured(*parsed, turns_->read_clock());
  tell_contacts();
  return {};
}

std::expected<void, std::string> Overlay::Core::add_peer(const std::string& address) {
  const auto parsed = parse_address(address, AddressUse::dial);
  if (!parsed) return std::unexpected("peer " + parsed.error());
  book_.add_configured(*parsed, turns_->read_clock());
  tell_contacts();
  return {};
}

/// Those to join through are those to dial, the configured ones first.
void Overlay::Core::tell_contacts() {
  if (!roster_) return;
  std::vector<std::string> contacts;
  for (const bool configured : {true, false}) {
    for (const auto& [text, entry] : book_.entries()) {
      if (entry.configured == configured) contacts.push_back(text);
    }
  }
  roster_->set_contacts(std::move(contacts), turns_->read_clock());
}

void Overlay::Core::set_denied(const std::vector<NodeId>& nodes) {
  denied_here_ = std::set<NodeId>(nodes.begin(), nodes.end());
  enforce_denials();
}

bool Overlay::Core::settled() const {
  const bool alone = !roster_ || roster_->membership().view().empty();
  if (!book_.settled([this](const NodeId& node) { return is_linked(node); }, alone)) return false;
  // A link that is not shown yet will be as soon as the two know each other, and then there are others to be met.
  const bool meeting = std::ranges::any_of(links_, [this](const LinkPtr& link) {
    return link->phase == LinkPhase::passing && now() - link->up_since < options_.membership.probe_interval_us;
  });
  return !meeting && (!roster_ || std::ranges::all_of(roster_->wanted(), [this](const auto& wanted) {
    return is_linked(wanted.node) || book_.has_failed(wanted.node);
  }));
}

std::vector<MemberStatus> Overlay::Core::members() const {
  std::vector<MemberStatus> all;
  if (!roster_) return all;
  for (const gossip::Membership::Member& member : roster_->membership().members()) {
    MemberStatus status;
    status.node = member.record.node;
    status.address = member.record.address;
    status.incarnation = member.record.incarnation;
    status.suspected = member.suspected;
    status.last_heard = member.last_heard_us;
    if (const auto record = nodes_.find(status.node); record != nodes_.end()) {
      status.name = record->second.name;
      status.linked = record->second.link != nullptr;
      if (status.linked) status.last_heard = std::max(status.last_heard, record->second.link->last_heard);
    }
    all.push_back(std::move(status));
  }
  return all;
}

MembershipStatus Overlay::Core::membership() const {
  if (!roster_) return {};
  const gossip::Membership& membership = roster_->membership();
  return {.partial = membership.partial(),
          .members = membership.members().size(),
          .view = membership.view().size(),
          .passive = membership.passive_view().size(),
          .incarnation = membership.self().incarnation,
          .health = membership.health_score(),
          .counters = membership.counters()};
}

std::vector<LinkStatus> Overlay::Core::links() const {
  std::vector<LinkStatus> all;
  for (const auto& [node, record] : nodes_) {
    LinkStatus status;
    status.node = node;
    status.name = record.name;
    const gossip::Membership::Member* member = roster_ ? roster_->membership().find(node) : nullptr;
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
      status.goodput_bytes_s = record.link->pacing.goodput(turns_->read_clock());
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

// --- time passes ---------------------------------------------------------------------------------------------------

void Overlay::Core::schedule_tick() {
  turns_->after(timer_, std::chrono::milliseconds(options_.tick_ms), [this] {
    tick();
    schedule_tick();
  });
}

void Overlay::Core::tick() {
  forgive_own_pause();
  last_tick_ = now();
  listener_.tend();
  end_broken();
  if (probe_wanted_) probe_incoming();
  roster_->tick(now());
  follow_roster();
  tend_spread();
  end_those([this](Link& link) { return tend(link); });
  tend_address();
  dial_due();
  send_acks(1);
  pump_all();
}

void Overlay::Core::forgive_own_pause() {
  const TimeUs late = now() - last_tick_ - options_.tick_ms * us_per_ms;
  if (late < own_pause_us) return;
  log_->debug("this process paused for {} ms", late / us_per_ms);
  for (const LinkPtr& link : links_) {
    link->last_heard += late;
    for (TimeUs& heard : link->heard)
      heard += late;
    link->opened += late;
    link->last_kept += late;
  }
}

/// Gives the reason to end the link, if there is one.
std::string Overlay::Core::tend(Link& link) {
  if (!link.is_up()) {
    if (now() - link.opened < options_.attempt_timeout_ms * us_per_ms) return {};
    if (!link.outgoing) return "the other end did not finish its dialling";
    const auto failure = link.outgoing->expire();
    if (!failure) return {};
    attempt_failed(*link.outgoing, *failure);
    return failure->text;
  }
  if (std::string silence = silence_of(link); !silence.empty()) return silence;
  if (now() - link.last_bulk_ping >= options_.link_timeout_ms * us_per_ms) {
    link.last_bulk_ping = now();
    say(link, Channel::bulk, Ping{now(), {}});
  }
  if (now() - link.last_ping >= options_.ping_interval_ms * us_per_ms) ping(link);
  return link.is_shown() ? std::string{} : tend_passing(link);
}

/// A link that is not kept: to a node that is to become a member, or for an errand. A node that knows nobody takes
/// whoever dials it for one that knew its former life.
std::string Overlay::Core::tend_passing(Link& link) {
  const bool alone = roster_->membership().view().empty();
  const bool contact = alone || (link.dialled_by_us() && !roster_->membership().partial());
  if (contact && now() - link.last_greeted >= options_.membership.probe_interval_us) {
    link.last_greeted = now();
    roster_->greet(link.node, now());
  }
  return now() - link.last_kept >= passing_link_us ? "no longer needed" : "";
}

/// Each connection for itself: one may be dead while the other lives, and what is sent on it would be lost for ever.
/// Bulk has time, because what it waits for may be behind megabytes.
std::string Overlay::Core::silence_of(const Link& link) const {
  const auto longer_than = [&](Channel channel, int limit_ms) {
    return now() - link.heard[index_of(channel)] >= limit_ms * us_per_ms;
  };
  const int bulk_timeout_ms = bulk_patience * options_.link_timeout_ms;
  if (longer_than(Channel::control, options_.link_timeout_ms))
    return "silent for " + std::to_string(options_.link_timeout_ms) + " ms";
  if (longer_than(Channel::bulk, bulk_timeout_ms))
    return "its bulk connection has been silent for " + std::to_string(bulk_timeout_ms) + " ms";
  return {};
}

/// Some connection to our port has ended; ZeroMQ tells which only when something is sent on it.
void Overlay::Core::probe_incoming() {
  probe_wanted_ = false;
  for (const LinkPtr& link : links_) {
    if (link->outgoing || !link->is_up()) continue;  // one that is being made hears nothing but its welcomes
    for (const Channel channel : {Channel::control, Channel::bulk})
      say(*link, channel, Ping{now(), {}});
  }
  end_broken();
}

/// While nobody is known, everybody who ever was is dialled. With partial views a configured node is a contact to join
/// through, and not dialled otherwise.
void Overlay::Core::dial_due() {
  for (const auto& [node, text, unexpected] : roster_->wanted()) {
    if (is_linked(node)) continue;
    const auto address = parse_address(text, AddressUse::dial);
    if (address) (void)book_.learn(node, *address, now(), unexpected);
  }
  const bool alone = roster_->membership().view().empty();
  const auto is_wanted = [&](const BookEntry& entry) {
    if (alone || (entry.node && roster_->wants(*entry.node))) return true;
    return entry.configured && !roster_->membership().partial();
  };
  const std::size_t room = options_.max_links - std::min(options_.max_links, links_.size());
  const auto due = book_.take_due(
      now(), std::min(room, attempts_per_tick), [this](const NodeId& node) { return is_linked(node); }, is_wanted);
  for (const Address& address : due)
    dial(address);
}

void Overlay::Core::dial(const Address& address) {
  ++counters_.attempts;
  OutgoingLinkOptions options;
  options.address = address;
  options.incarnation = options_.incarnation;
  options.own_address = advertised_;
  options.own_name = options_.name;
  options.interface = options_.interface;
  options.features = options_.features;
  options.connect_timeout_ms = options_.attempt_timeout_ms;
  options.high_water_messages = {options_.control_high_water_messages, options_.bulk_high_water_messages};
  options.bulk_io_thread = idlest_io_thread();
  auto link = std::make_shared<Link>();
  link->bulk_io_thread = options.bulk_io_thread;
  link->host = address.host;
  link->opened = now();
  link->outgoing = std::make_shared<OutgoingLink>(loop_, context_, std::move(options), identity_, keys_, *this);
  links_.push_back(link);
  link->outgoing->start();
}

/// ZeroMQ deals connections out by their number, and every second one carries next to nothing: all bulk could meet on
/// the same threads. So the thread with the fewest links that we dialled is asked for.
int Overlay::Core::idlest_io_thread() const {
  std::vector<int> links(static_cast<std::size_t>(options_.io_threads));
  for (const LinkPtr& link : links_) {
    if (link->dialled_by_us()) ++links[static_cast<std::size_t>(link->bulk_io_thread)];
  }
  return static_cast<int>(std::ranges::min_element(links) - links.begin());
}

}  // namespace gossamer::peer
