#include "gossip/membership/membership.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "gossip/check.hpp"

namespace gossamer::gossip {

namespace {

/// Assumed size of a cluster whose size no node knows: partial views are meant for up to this many members.
constexpr std::size_t partial_view_nodes = 9'999;
/// Lost members whose addresses are tried in one tick, because there are signs that they are back.
constexpr std::size_t reconnects_per_tick = 4;
constexpr std::size_t joins_at_once = 3;
constexpr TimeUs expire_interval_us = 10 * us_per_s;

/// True if a node's own word counts more than a claim about it. At the largest incarnation the own word always does,
/// because the node cannot raise it any further.
bool outweighs(std::uint64_t own, std::uint64_t claimed) {
  return own > claimed || own == last_incarnation;
}

}  // namespace

MembershipOptions MembershipOptions::wan() {
  MembershipOptions options;
  options.probe_interval_us = 5 * us_per_s;
  options.probe_timeout_us = 3 * us_per_s;
  options.suspicion_mult = 6;
  options.gossip_interval_us = 500 * us_per_ms;
  options.gossip_fanout = 4;
  options.sync_interval_us = 60 * us_per_s;
  options.reconnect_interval_us = 30 * us_per_s;
  options.shuffle_interval_us = 60 * us_per_s;
  options.tick_us = 250 * us_per_ms;
  options.pause_us = 5 * us_per_s;
  return options;
}

Membership::Membership(const MembershipOptions& options, MemberRecord self, Random random, TimeUs now_us)
    : options_(options), self_(std::move(self)), random_(random), last_tick_us_(now_us) {
  GOSSAMER_CHECK(valid(self_));
  GOSSAMER_CHECK(options_.full_view_limit >= 1 && options_.full_view_limit <= max_full_view);
  GOSSAMER_CHECK(options_.active_view >= 1 && options_.active_view <= max_active_view);
  GOSSAMER_CHECK(options_.passive_view >= 1 && options_.passive_view <= max_passive_view);
  GOSSAMER_CHECK(options_.probe_timeout_us < options_.probe_interval_us);
  // The first actions are spread over their intervals, so that nodes that start together do not act together.
  const auto phase = [&](TimeUs interval_us) {
    return now_us + static_cast<TimeUs>(random_.below(static_cast<std::uint64_t>(interval_us)));
  };
  next_probe_us_ = phase(options_.probe_interval_us);
  next_news_us_ = phase(options_.gossip_interval_us);
  next_sync_us_ = phase(options_.sync_interval_us);
  next_reconnect_us_ = phase(options_.reconnect_interval_us);
  next_shuffle_us_ = phase(options_.shuffle_interval_us);
  next_expire_us_ = phase(expire_interval_us);
  sequence_ = static_cast<std::uint32_t>(random_.next());
  join_backoff_us_ = options_.probe_interval_us;
  refusals_backoff_us_ = options_.gossip_interval_us;
}

// ---------------------------------------------------------------------------------------------------------- lookups

Membership::Member* Membership::member_of(const NodeId& node) {
  const auto found =
      std::ranges::lower_bound(members_, node, {}, [](const Member& member) { return member.record.node; });
  return found != members_.end() && found->record.node == node ? &*found : nullptr;
}

const Membership::Member* Membership::find(const NodeId& node) const {
  return const_cast<Membership*>(this)->member_of(node);
}

bool Membership::considers_gone(const NodeId& node) const {
  const HeardClaims::Heard* heard = heard_.find(node);
  return heard != nullptr && heard->claim != Claim::alive;
}

const std::string& Membership::address_of(const NodeId& node) const {
  static const std::string none;
  if (const Member* member = find(node)) return member->record.address;
  const auto is_node = [&](const MemberRecord& record) { return record.node == node; };
  if (const auto found = std::ranges::find_if(passive_, is_node, &Reserve::record); found != passive_.end())
    return found->record.address;
  if (const auto found = std::ranges::find_if(pending_, is_node, &Pending::record); found != pending_.end()) {
    return found->record.address;
  }
  if (const auto found = std::ranges::find_if(lost_, is_node, &Lost::record); found != lost_.end()) {
    return found->record.address;
  }
  return none;
}

std::size_t Membership::assumed_nodes() const {
  return partial_ ? partial_view_nodes : members_.size() + 1;
}

/// With partial views only a node's watchers and the node itself have to hear of a suspicion.
SuspicionBounds Membership::bounds() const {
  return suspicion_bounds(options_.suspicion_mult, options_.suspicion_max_mult, members_.size() + 1,
                          options_.probe_interval_us);
}

std::vector<std::size_t> Membership::some_members(std::size_t count) {
  std::vector<std::size_t> indices(members_.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  indices.resize(random_.draw(indices, count).size());
  return indices;
}

// ---------------------------------------------------------------------------------------------------------- sending

/// An accused node is told so with every message, so that it can refute (Lifeguard's buddy system, section IV-C).
std::optional<Rumour> Membership::claim_about(const NodeId& node) const {
  Rumour rumour{.spread = false, .subject = {.node = node}};
  if (const Member* member = find(node)) {
    if (!member->suspected) return std::nullopt;
    rumour.claim = Claim::suspected;
    rumour.subject.incarnation = member->record.incarnation;
    rumour.accuser = member->suspicion.accusers().front();
    return rumour;
  }
  const HeardClaims::Heard* heard = heard_.find(node);
  if (heard == nullptr || heard->claim == Claim::alive) return std::nullopt;
  rumour.claim = heard->claim;
  rumour.subject.incarnation = heard->incarnation;
  return rumour;
}

void Membership::send(const NodeId& to, const std::string& address, MembershipBody body, Actions& out) {
  MembershipMessage message;
  message.incarnation = self_.incarnation;
  message.partial = partial_;
  std::size_t bytes = max_message_rumour_bytes;
  if (const std::optional<Rumour> claim = claim_about(to)) {
    bytes -= wire_bytes(*claim);
    message.rumours.push_back(*claim);
  }
  rumours_.take(message.rumours, bytes, retransmission_limit(options_.retransmit_mult, assumed_nodes()), to);
  message.body = std::move(body);
  out.send.push_back({to, address, std::move(message)});
}

void Membership::answer(const NodeId& to, MembershipBody body, Actions& out) {
  send(to, address_of(to), std::move(body), out);
}

void Membership::pass_on(Claim claim, const MemberRecord& subject, const NodeId& accuser, bool spread,
                         std::uint8_t hops) {
  if (hops > max_rumour_hops) return;
  Rumour rumour{.claim = claim, .spread = spread, .hops = hops, .subject = subject, .accuser = accuser};
  if (claim != Claim::alive) rumour.subject.address.clear();
  if (claim == Claim::alive && !valid(subject)) return;
  rumours_.push(std::move(rumour));
}

// -------------------------------------------------------------------------------------------------- what is heard

void Membership::receive(const NodeId& from, const MembershipMessage& message, TimeUs now_us, Actions& out) {
  if (left_ || from == self_.node) return;
  if (from == NodeId{} || !valid(message)) {
    ++counters_.malformed;
    return;
  }
  if (disbelieves(largest_incarnation(message))) return;
  notice_pause(now_us);
  speaking_ = from;
  if (!partial_ && shows_large_cluster(message)) become_partial(now_us, out);
  // Claims about this node are handled first, so that each answer carries the refutation.
  for (const Rumour& rumour : message.rumours) {
    if (rumour.subject.node == self_.node) hear(rumour, now_us, out);
  }
  // A node that joins introduces itself anew, which distinguishes a restart from a refutation.
  if (!std::holds_alternative<Join>(message.body)) first_hand(from, message, now_us, out);
  for (const Rumour& rumour : message.rumours) {
    if (rumour.subject.node != self_.node) hear(rumour, now_us, out);
  }
  std::visit([&](const auto& body) { on(from, body, message, now_us, out); }, message.body);
  speaking_ = {};
  settle(out);
}

/// Takes in what a message proves about its sender.
void Membership::first_hand(const NodeId& from, const MembershipMessage& message, TimeUs now_us, Actions& out) {
  if (std::holds_alternative<Leave>(message.body)) return;
  if (Member* member = member_of(from)) {
    member->unheard = 0;
    if (self_.dial_only && message.partial) crowded_us_ = now_us;
    own_word(*member, message.incarnation, now_us, out);
    return;
  }
  if (considers_gone(from)) {
    if (outweighs(message.incarnation, heard_.find(from)->incarnation))
      returned(from, message.incarnation, now_us, out);
    return;
  }
  const bool introduces_itself =
      std::holds_alternative<Sync>(message.body) || std::holds_alternative<NeighbourRequest>(message.body);
  if (!partial_ && !introduces_itself && now_us >= next_introduction_us_) {
    next_introduction_us_ = now_us + options_.probe_interval_us;
    answer(from, make_sync(true), out);
  }
}

/// A member has reported its own incarnation.
void Membership::own_word(Member& member, std::uint64_t incarnation, TimeUs now_us, Actions& out) {
  member.met = true;
  member.last_heard_us = now_us;
  const bool refuted = outweighs(incarnation, member.record.incarnation);
  member.record.incarnation = std::max(member.record.incarnation, incarnation);
  if (!refuted || !member.suspected) return;
  trust(member, now_us, out);
  pass_on(Claim::alive, member.record, {}, !partial_, 0);
}

/// A node that was gone has shown that it is back.
void Membership::returned(const NodeId& node, std::uint64_t incarnation, TimeUs now_us, Actions& out) {
  std::optional<MemberRecord> record = take_lost(node);
  if (partial_ || !record) heard_.put(node, incarnation, Claim::alive, now_us);
  if (!record) {
    rumours_.erase(node);
    out.events.push_back({Change::alive_again, node});
    if (!partial_) answer(node, make_sync(true), out);
    return;
  }
  record->incarnation = incarnation;
  if (partial_) {
    pass_on(Claim::alive, *record, {}, true, 0);
    out.events.push_back({Change::alive_again, node});
    remember(*record, true, now_us, out);
    // If the cluster was divided, this link joins the parts again.
    request_neighbour(*record, true, now_us, out);
  } else {
    Member& member = add_member(*record, now_us, out);
    member.addressed_at = 0;  // the address is that of its former life, so any newer record may replace it
    member.last_heard_us = now_us;
    pass_on(Claim::alive, *record, {}, true, 0);
    send(*record, make_sync(true), out);
    become_partial_if_large(now_us, out);
  }
}

void Membership::hear(const Rumour& rumour, TimeUs now_us, Actions& out) {
  if (disbelieves(rumour.subject.incarnation)) return;
  const auto hops = static_cast<std::uint8_t>(rumour.hops + 1);
  switch (rumour.claim) {
    case Claim::alive:
      hear_alive(rumour.subject, rumour.spread, hops, now_us, out);
      break;
    case Claim::suspected:
      hear_suspected(rumour.subject.node, rumour.subject.incarnation, rumour.accuser, false, now_us, out);
      break;
    case Claim::dead:
    case Claim::left:
      hear_gone(rumour, now_us, out);
      break;
  }
}

bool Membership::disbelieves(std::uint64_t claimed) {
  if (claimed <= last_incarnation) return false;
  ++counters_.implausible;
  return true;
}

void Membership::hear_alive(const MemberRecord& record, bool spread, std::uint8_t hops, TimeUs now_us, Actions& out) {
  if (record.node == self_.node) {  // others remember an earlier life of this node, or a member has invented one
    if (record.incarnation > self_.incarnation) refute(Claim::alive, record.incarnation);
    return;
  }
  if (Member* member = member_of(record.node)) {
    if (record.incarnation <= member->record.incarnation) {
      hear_address(*member, record, spread, hops);
      return;
    }
    member->record = record;
    member->addressed_at = record.incarnation;
    if (member->suspected) trust(*member, now_us, out);
    if (spread) pass_on(Claim::alive, record, {}, true, hops);
    return;
  }
  if (heard_.gone(record.node, record.incarnation)) {
    // Another node believes it to be alive. So it may be back, and not know that it was declared dead.
    for (Lost& lost : lost_)
      lost.due |= lost.record.node == record.node;
    return;
  }
  hear_alive_elsewhere(record, spread, hops, now_us, out);
}

/// The record's incarnation is not new here, but its address may be.
void Membership::hear_address(Member& member, const MemberRecord& record, bool spread, std::uint8_t hops) {
  if (record.incarnation <= member.addressed_at) return;
  member.addressed_at = record.incarnation;
  if (record.address == member.record.address && record.dial_only == member.record.dial_only) return;
  member.record.address = record.address;
  member.record.dial_only = record.dial_only;
  view_changed_ = true;
  if (spread) pass_on(Claim::alive, member.record, {}, true, hops);
}

/// Handles a node that is not a member here.
void Membership::hear_alive_elsewhere(const MemberRecord& record, bool spread, std::uint8_t hops, TimeUs now_us,
                                      Actions& out) {
  const HeardClaims::Heard* heard = heard_.find(record.node);
  if (!partial_) {
    if (is_full_of_hearsay() && record.node != speaking_) return;
    take_lost(record.node);
    add_member(record, now_us, out);
    if (spread) pass_on(Claim::alive, record, {}, true, hops);
    become_partial_if_large(now_us, out);
    return;
  }
  if (spread && (heard == nullptr || heard->incarnation < record.incarnation)) {
    const bool was_gone = heard != nullptr && heard->claim != Claim::alive;
    if (!heard_.put(record.node, record.incarnation, Claim::alive, now_us)) return;
    if (was_gone) out.events.push_back({Change::alive_again, record.node});
    // A former neighbour may not have noticed that it was given up.
    if (take_lost(record.node)) request_neighbour(record, false, now_us, out);
    pass_on(Claim::alive, record, {}, true, hops);
  }
  remember(record, false, now_us, out);
}

void Membership::hear_suspected(const NodeId& node, std::uint64_t incarnation, const NodeId& accuser, bool leaving,
                                TimeUs now_us, Actions& out) {
  if (node == self_.node) {
    refute(Claim::suspected, incarnation);
    return;
  }
  Member* member = member_of(node);
  if (member == nullptr || incarnation < member->record.incarnation) return;
  member->record.incarnation = incarnation;
  member->leaving |= leaving;
  const bool first = !member->suspected;
  if (first) {
    member->suspected = true;
    member->suspicion = Suspicion(bounds(), accuser, now_us);
    out.events.push_back({Change::suspected, node});
    ++counters_.suspicions;
  } else if (!member->suspicion.confirm(accuser)) {
    return;
  }
  if (!partial_) {
    pass_on(Claim::suspected, member->record, accuser, true, 0);
  } else if (accuser != self_.node) {
    member->urgent = first;  // so that its watchers decide soon
  } else {
    for (const MemberRecord& watcher : member->watchers) {
      if (watcher.node == self_.node || !reachable(watcher)) continue;
      send(watcher, News{}, out);
      out.send.back().message.rumours.resize(std::min(out.send.back().message.rumours.size(), max_message_rumours - 1));
      Rumour rumour{.claim = Claim::suspected, .spread = false, .accuser = accuser};
      rumour.subject.node = node;
      rumour.subject.incarnation = incarnation;
      out.send.back().message.rumours.push_back(rumour);
    }
  }
}

void Membership::hear_gone(const Rumour& rumour, TimeUs now_us, Actions& out) {
  const NodeId& node = rumour.subject.node;
  const std::uint64_t incarnation = rumour.subject.incarnation;
  if (node == self_.node) {
    refute(rumour.claim, incarnation);
    return;
  }
  const auto hops = static_cast<std::uint8_t>(rumour.hops + 1);
  if (Member* member = member_of(node)) {
    if (incarnation < member->record.incarnation) return;
    // Nodes that declare a death have heard nothing for at least the shortest suspicion. This node has heard the member
    // in that time.
    if (now_us - member->last_heard_us < bounds().min_us * 3 / 4) {
      ++counters_.deaths_doubted;
      member->urgent = true;
      hear_suspected(node, incarnation, self_.node, rumour.claim == Claim::left, now_us, out);
      return;
    }
    member->record.incarnation = incarnation;
    bury(node, rumour.claim, hops, now_us, out);
    return;
  }
  const HeardClaims::Heard* heard = heard_.find(node);
  if (heard != nullptr &&
      (heard->incarnation > incarnation || (heard->incarnation == incarnation && heard->claim != Claim::alive))) {
    return;
  }
  const bool news = heard == nullptr || heard->claim == Claim::alive;
  if (!heard_.put(node, incarnation, rumour.claim, now_us)) {
    ++counters_.news_forgotten;
    return;
  }
  forget(node);
  if (news) out.events.push_back({rumour.claim == Claim::left ? Change::left : Change::died, node});
  if (rumour.spread) pass_on(rumour.claim, rumour.subject, {}, true, hops);
}

/// Answers a false claim about this node (Das et al. 2002, section 4.2).
void Membership::refute(Claim claim, std::uint64_t incarnation) {
  if (incarnation < self_.incarnation) return;
  self_.incarnation = incarnation == last_incarnation ? incarnation : incarnation + 1;
  ++counters_.refutations;
  if (claim != Claim::alive) health_.change(1);
  // Neighbours may have given this node up. When they are told its view, each says whether it is still a neighbour.
  view_untold_ |= claim == Claim::dead || claim == Claim::left;
  // The nodes that suspect this one hear the refutation directly. A death may be known to all, so it is refuted to all.
  pass_on(Claim::alive, self_, {}, !partial_ || claim == Claim::dead || claim == Claim::left, 0);
}

// ------------------------------------------------------------------------------------------------ table of members

void Membership::trust(Member& member, TimeUs now_us, Actions& out) {
  member.suspected = false;
  member.leaving = false;
  member.urgent = false;
  member.last_heard_us = now_us;
  member.suspicion = {};
  out.events.push_back({Change::refuted, member.record.node});
}

Membership::Member& Membership::add_member(const MemberRecord& record, TimeUs now_us, Actions& out) {
  const HeardClaims::Heard* heard = heard_.find(record.node);
  // With partial views the return of a gone node has already been announced, and it may become a neighbour later.
  const bool again = !partial_ && heard != nullptr && heard->claim != Claim::alive;
  const bool announced = !partial_ && heard != nullptr && heard->claim == Claim::alive;
  if (!announced) out.events.push_back({again ? Change::alive_again : Change::joined, record.node});
  heard_.erase(record.node);
  if (!partial_) rumours_.erase(record.node);
  if (!partial_ && is_full_of_hearsay()) drop_hearsay();
  const auto place =
      std::ranges::lower_bound(members_, record.node, {}, [](const Member& member) { return member.record.node; });
  GOSSAMER_CHECK(place == members_.end() || place->record.node != record.node);
  Member& member = *members_.insert(place, Member{.record = record,
                                                  .addressed_at = record.incarnation,
                                                  .last_heard_us = now_us,
                                                  .met = record.node == speaking_});
  const std::size_t at = probe_next_ + random_.below(probe_order_.size() - probe_next_ + 1);
  probe_order_.insert(probe_order_.begin() + static_cast<std::ptrdiff_t>(at), record.node);
  view_changed_ = true;
  return member;
}

void Membership::remove_member(const NodeId& node) {
  std::erase_if(members_, [&](const Member& member) { return member.record.node == node; });
  const auto place = std::ranges::find(probe_order_, node);
  if (place != probe_order_.end()) {
    if (static_cast<std::size_t>(place - probe_order_.begin()) < probe_next_) --probe_next_;
    probe_order_.erase(place);
  }
  if (probe_ && probe_->target == node) probe_.reset();
  view_changed_ = true;
  if (partial_) view_untold_ = true;
}

/// Ends a member's life, as far as this node knows it.
void Membership::bury(const NodeId& node, Claim claim, std::uint8_t hops, TimeUs now_us, Actions& out) {
  const MemberRecord record = find(node)->record;
  remove_member(node);
  if (!heard_.put(node, record.incarnation, claim, now_us)) {
    ++counters_.news_forgotten;
    heard_.make_room();
    heard_.put(node, record.incarnation, claim, now_us);
  }
  forget(node);
  if (claim == Claim::dead) note_lost(record, now_us);
  out.events.push_back({claim == Claim::left ? Change::left : Change::died, node});
  pass_on(claim, record, {}, true, hops);
  refusals_backoff_us_ = options_.gossip_interval_us;
  searched_us_ = now_us - refusals_backoff_us_;
}

void Membership::note_lost(const MemberRecord& record, TimeUs now_us) {
  if (record.dial_only) return;
  if (lost_.size() >= max_lost) lost_.erase(lost_.begin());  // the oldest
  lost_.push_back({record, now_us, false});
}

std::optional<MemberRecord> Membership::take_lost(const NodeId& node) {
  const auto found = std::ranges::find_if(lost_, [&](const Lost& lost) { return lost.record.node == node; });
  if (found == lost_.end()) return std::nullopt;
  MemberRecord record = std::move(found->record);
  lost_.erase(found);
  return record;
}

/// Updates the set of nodes to keep links to.
void Membership::settle(Actions& out) {
  if (!view_changed_) return;
  view_changed_ = false;
  std::vector<NodeId> wanted;
  wanted.reserve(members_.size() + pending_.size());
  for (const Member& member : members_) {
    if (reachable(member.record)) wanted.push_back(member.record.node);
  }
  for (const Pending& pending : pending_)
    wanted.push_back(pending.record.node);
  std::ranges::sort(wanted);
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (const NodeId& node : wanted) {
    if (std::ranges::binary_search(view_, node)) continue;
    const Member* member = find(node);
    if (member == nullptr || !member->record.dial_only) out.dial.push_back({node, address_of(node)});
  }
  for (const NodeId& node : view_) {
    if (!std::ranges::binary_search(wanted, node)) out.hang_up.push_back(node);
  }
  view_ = std::move(wanted);
}

// ---------------------------------------------------------------------------------------------------------- messages

void Membership::on(const NodeId& from, const Sync& body, const MembershipMessage& message, TimeUs now_us,
                    Actions& out) {
  if (body.sender.node != from) {
    ++counters_.malformed;
    return;
  }
  hear_alive(body.sender, !partial_, 0, now_us, out);
  if (message.partial) taken_for_neighbour(from, now_us, out);  // a partial view is sent to neighbours only
  if (Member* member = member_of(from); message.partial && member != nullptr) {
    member->watchers.clear();
    for (const SyncEntry& entry : body.entries) {
      if (member->watchers.size() < max_active_view) member->watchers.push_back(entry.record);
    }
  }
  for (const SyncEntry& entry : body.entries) {
    if (partial_) {
      if (entry.record.node != self_.node) remember(entry.record, false, now_us, out);
      continue;
    }
    if (entry.claim == Claim::suspected) {
      hear_suspected(entry.record.node, entry.record.incarnation, from, false, now_us, out);
    } else {
      hear_alive(entry.record, false, 0, now_us, out);
    }
  }
  if (!body.answer_wanted) return;
  // A sender that can only dial out does not probe others of that kind. If it has missed the news of a death, it hears
  // of it here.
  for (const SyncEntry& entry : body.entries) {
    if (partial_ || !heard_.gone(entry.record.node, entry.record.incarnation)) continue;
    const Rumour gone = *claim_about(entry.record.node);
    pass_on(gone.claim, gone.subject, {}, true, 0);
  }
  send(body.sender, make_sync(false), out);
}

void Membership::on(const NodeId& from, const Join& body, const MembershipMessage&, TimeUs now_us, Actions& out) {
  const MemberRecord& record = body.sender;
  if (record.node != from || (record.dial_only && self_.dial_only)) {
    ++counters_.malformed;
    return;
  }
  if (Member* member = member_of(from); member != nullptr && record.incarnation > member->record.incarnation) {
    // The restart was too quick to be noticed. Everything under way with its former life ends nevertheless.
    const std::uint64_t former = member->record.incarnation;
    out.events.push_back({Change::died, from});
    remove_member(from);
    heard_.put(from, former, Claim::dead, now_us);
  }
  if (heard_.gone(from, record.incarnation) && !outweighs(record.incarnation, heard_.find(from)->incarnation)) {
    send(record, News{}, out);  // this tells it what to refute before it joins again
    return;
  }
  if (!partial_) {
    if (find(from) == nullptr) {
      take_lost(from);
      add_member(record, now_us, out);
      pass_on(Claim::alive, record, {}, true, 0);
    }
    send(record, make_sync(false), out);
    become_partial_if_large(now_us, out);
    return;
  }
  if (considers_gone(from)) hear_alive_elsewhere(record, true, 0, now_us, out);
  const bool known = find(from) != nullptr;
  const bool accepted = known || make_room(record, Need::knows_nobody, out);
  if (accepted && !known) {
    for (const Member& member : members_) {
      if (!record.dial_only) send(member.record, ForwardJoin{record, active_walk_hops}, out);
    }
    take_neighbour(record, now_us, out);
  }
  send(record, NeighbourReply{self_, accepted}, out);
  send(record, ShuffleReply{sample_views(max_shuffle_records / 2, max_shuffle_records / 2)}, out);
}

void Membership::on(const NodeId& from, const Leave&, const MembershipMessage& message, TimeUs now_us, Actions& out) {
  Member* member = member_of(from);
  if (member == nullptr || message.incarnation < member->record.incarnation) return;  // from a former life
  member->record.incarnation = message.incarnation;
  bury(from, Claim::left, 0, now_us, out);
}

void Membership::on(const NodeId&, const News&, const MembershipMessage&, TimeUs, Actions&) {}

// -------------------------------------------------------------------------------------------------------------- time

/// During a pause of this node all others seem silent to it, and it seems dead to them.
void Membership::notice_pause(TimeUs now_us) {
  const TimeUs gap_us = now_us - last_tick_us_;
  last_tick_us_ = std::max(last_tick_us_, now_us);
  if (gap_us < options_.pause_us) return;
  ++counters_.pauses;
  health_.change(1);
  if (self_.incarnation != last_incarnation) ++self_.incarnation;
  pass_on(Claim::alive, self_, {}, !partial_, 0);
  probe_.reset();
  relays_.clear();
  next_probe_us_ = now_us + options_.probe_interval_us;
  for (Member& member : members_) {
    if (member.suspected) member.suspicion = Suspicion(bounds(), member.suspicion.accusers().front(), now_us);
  }
  for (Pending& pending : pending_)
    pending.deadline_us = now_us + options_.probe_interval_us;
}

void Membership::tick(TimeUs now_us, Actions& out) {
  if (left_) return;
  notice_pause(now_us);
  expire_suspicions(now_us, out);
  advance_relays(now_us, out);
  advance_probe(now_us, out);
  introduce(now_us, out);
  if (partial_) tend_views(now_us, out);
  spread_news(now_us, out);
  synchronise(now_us, out);
  reconnect(now_us, out);
  if (now_us >= next_expire_us_) {
    next_expire_us_ = now_us + expire_interval_us;
    heard_.expire(now_us);
    std::erase_if(lost_, [&](const Lost& lost) { return now_us - lost.since_us > options_.reconnect_for_us; });
  }
  settle(out);
}

void Membership::join(std::vector<std::string> addresses, TimeUs now_us, Actions& out) {
  std::erase_if(addresses, [&](const std::string& address) {
    return address.empty() || address.size() > max_member_address_bytes || address == self_.address;
  });
  if (addresses.size() > max_contacts) addresses.resize(max_contacts);
  contacts_ = std::move(addresses);
  join_backoff_us_ = options_.probe_interval_us;
  next_join_us_ = now_us;
  introduce(now_us, out);
}

void Membership::greet(const NodeId& node, TimeUs now_us, Actions& out) {
  if (left_ || node == self_.node || find(node) != nullptr) return;
  notice_pause(now_us);
  if (members_.empty()) {
    send(node, {}, Join{self_}, out);
  } else if (!partial_) {
    send(node, {}, make_sync(true), out);
  } else if (considers_gone(node)) {
    send(node, {}, Ping{++sequence_}, out);  // this tells it what to refute
  }
}

void Membership::introduce(TimeUs now_us, Actions& out) {
  if (!members_.empty() || contacts_.empty() || now_us < next_join_us_) return;
  next_join_us_ = now_us + join_backoff_us_;
  join_backoff_us_ = std::min(2 * join_backoff_us_, options_.reconnect_interval_us);
  for (const std::string& contact : random_.draw(contacts_, joins_at_once))
    send(NodeId{}, contact, Join{self_}, out);
}

void Membership::spread_news(TimeUs now_us, Actions& out) {
  if (now_us < next_news_us_) return;
  next_news_us_ = now_us + options_.gossip_interval_us;
  if (rumours_.empty()) return;
  for (const std::size_t index : some_members(options_.gossip_fanout)) {
    if (rumours_.empty()) return;
    if (reachable(members_[index].record)) send(members_[index].record, News{}, out);
  }
}

Sync Membership::make_sync(bool answer_wanted) {
  Sync sync{.sender = self_, .answer_wanted = answer_wanted};
  for (const std::size_t index : some_members(max_sync_entries)) {
    const Member& member = members_[index];
    sync.entries.push_back({member.record, member.suspected ? Claim::suspected : Claim::alive});
  }
  return sync;
}

void Membership::synchronise(TimeUs now_us, Actions& out) {
  if (now_us < next_sync_us_) return;
  next_sync_us_ = now_us + options_.sync_interval_us;
  if (members_.empty()) return;
  const Member& member = members_[random_.below(members_.size())];
  if (reachable(member.record)) send(MemberRecord(member.record), make_sync(true), out);
}

/// Tries the addresses of lost members, and contacts that no member has. This rejoins a divided cluster.
void Membership::reconnect(TimeUs now_us, Actions& out) {
  std::size_t tried = 0;
  for (Lost& lost : lost_) {
    if (!lost.due || tried == reconnects_per_tick) continue;
    lost.due = false;
    ++tried;
    send(lost.record, Ping{++sequence_}, out);
  }
  if (now_us < next_reconnect_us_) return;
  next_reconnect_us_ = now_us + options_.reconnect_interval_us;
  std::vector<std::string> strangers;
  for (const std::string& contact : contacts_) {
    const bool known = std::ranges::any_of(members_, [&](const Member& m) { return m.record.address == contact; }) ||
                       std::ranges::any_of(lost_, [&](const Lost& l) { return l.record.address == contact; });
    if (!known && !partial_ && !members_.empty()) strangers.push_back(contact);
  }
  if (lost_.empty() && strangers.empty()) return;
  const std::size_t drawn = random_.below(lost_.size() + strangers.size());
  if (drawn < lost_.size()) {
    send(lost_[drawn].record, Ping{++sequence_}, out);
  } else {
    send(NodeId{}, strangers[drawn - lost_.size()], make_sync(true), out);
  }
}

void Membership::leave(TimeUs now_us, Actions& out) {
  if (left_) return;
  notice_pause(now_us);
  for (const Member& member : members_)
    send(member.record, Leave{}, out);
  out.hang_up.insert(out.hang_up.end(), view_.begin(), view_.end());
  view_.clear();
  left_ = true;
}

void Membership::link_up(const NodeId& node, std::uint64_t incarnation, TimeUs now_us, Actions& out) {
  if (Member* member = member_of(node)) {
    member->urgent = false;
    own_word(*member, std::min(incarnation, last_incarnation), now_us, out);
  }
}

/// The address is not passed on: the member tells its other neighbours itself, and newcomers hear it from any of them.
void Membership::seen_at(const NodeId& node, const std::string& address) {
  Member* member = member_of(node);
  if (member == nullptr || member->record.dial_only) return;
  if (!address.empty() && address.size() <= max_member_address_bytes) member->record.address = address;
}

void Membership::relocate(const std::string& address) {
  self_.address = address;
  self_.dial_only = address.empty();
  view_changed_ = true;
  if (self_.incarnation != last_incarnation) ++self_.incarnation;
  pass_on(Claim::alive, self_, {}, true, 0);
  view_untold_ = true;
}

void Membership::link_down(const NodeId& node, TimeUs now_us, Actions&) {
  if (Member* member = member_of(node)) {
    member->urgent = true;
    if (!probe_) next_probe_us_ = std::min(next_probe_us_, now_us);
  }
}

void Membership::check_invariants() const {
  const auto is_ordered = [](const auto& items, auto node_of) {
    return std::ranges::adjacent_find(items, std::ranges::greater_equal{}, node_of) == items.end();
  };
  const auto own = [](const Member& member) { return member.record.node; };
  GOSSAMER_CHECK(is_ordered(members_, own) && is_ordered(view_, std::identity{}));
  GOSSAMER_CHECK(std::ranges::find(members_, self_.node, own) == members_.end());
  GOSSAMER_CHECK(partial_ || members_.size() <= options_.full_view_limit);
  GOSSAMER_CHECK(passive_.size() <= options_.passive_view && pending_.size() <= max_active_view);
  GOSSAMER_CHECK(lost_.size() <= max_lost && relays_.size() <= max_relays && contacts_.size() <= max_contacts);
  GOSSAMER_CHECK(rumours_.size() <= max_queued_rumours && heard_.items().size() <= max_heard);
}

}  // namespace gossamer::gossip
