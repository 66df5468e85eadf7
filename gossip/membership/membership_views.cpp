// Partial views: HyParView (Leitão, Pereira & Rodrigues 2007), with four changes. A node accepts up to
// active_view_slack neighbours more than it looks for, so that requests are seldom turned down. A node with less than
// half of the neighbours that it looks for is not turned down (in the paper: a node with none). Neighbours tell each
// other their active views, so that the watchers of a node know each other. A node that can only dial out asks others
// and is never asked. It is a *guest* of its neighbours. They keep room for guests apart from the room for nodes that
// can be dialled, so that neither kind takes the other's room. See gossip/membership/membership.hpp.

#include <algorithm>

#include "gossip/check.hpp"
#include "gossip/membership/membership.hpp"

namespace gossamer::gossip {

namespace {

/// Records of each view in a shuffle (Leitão et al. 2007, section 4.2).
constexpr std::size_t shuffled_active = 3;
constexpr std::size_t shuffled_passive = 4;
/// Longest time between two searches for neighbours.
constexpr TimeUs longest_search_backoff_us = 10 * us_per_s;
/// The same for a guest that has a neighbour, in shuffle intervals.
constexpr TimeUs patience_shuffles = 6;
constexpr std::uint8_t most_refusals = 255;
/// A guest with fewer neighbours than this is in need.
constexpr std::size_t fewest_of_guest = 2;
constexpr int request_attempts = 2;
/// If the passive view has not been full for this many shuffles, the cluster is small.
constexpr TimeUs uncrowded_shuffles = 10;

}  // namespace

/// True if a node with a full view learns from this message that the cluster is large. If it knows many members, every
/// message of a node with a partial view shows that. A newcomer learns it from a node that accepts it as a neighbour or
/// asks for it. A node that can be dialled, and has found the cluster to be small again, does not follow such messages.
/// Nodes that can only dial out never meet each other, so they go on following them.
bool Membership::shows_large_cluster(const MembershipMessage& message) const {
  if (!message.partial) return false;
  if (knows_many()) return true;
  if (small_again_ && !self_.dial_only) return false;
  if (const auto* reply = std::get_if<NeighbourReply>(&message.body)) return reply->accepted;
  if (std::holds_alternative<NeighbourRequest>(message.body)) return true;
  const auto* ping = std::get_if<Ping>(&message.body);
  return ping != nullptr && ping->neighbour;
}

/// Only members that have shown that they exist count, since a member can invent any number.
bool Membership::knows_many() const {
  const auto met = static_cast<std::size_t>(std::ranges::count(members_, true, &Member::met));
  return 2 * met > options_.full_view_limit;
}

bool Membership::is_full_of_hearsay() const {
  return members_.size() >= options_.full_view_limit && !knows_many();
}

/// Drops a member that others have told of and that was never met, to make room for a node that speaks for itself.
void Membership::drop_hearsay() {
  std::vector<NodeId> hearsay;
  for (const Member& member : members_) {
    if (!member.met) hearsay.push_back(member.record.node);
  }
  remove_member(hearsay[random_.below(hearsay.size())]);
}

void Membership::become_partial_if_large(TimeUs now_us, Actions& out) {
  if (members_.size() > options_.full_view_limit) become_partial(now_us, out);
}

/// Keeps some members as neighbours and tells them so. Keeps some others in the passive view. Members that were met
/// come first, so that no link is given up for a node that may not exist.
void Membership::become_partial(TimeUs now_us, Actions& out) {
  partial_ = true;
  small_again_ = false;
  crowded_us_ = now_us;
  next_shuffle_us_ =
      now_us + static_cast<TimeUs>(random_.below(static_cast<std::uint64_t>(options_.shuffle_interval_us)));
  std::vector<Member> former;
  former.swap(members_);
  random_.shuffle(former);
  std::ranges::stable_partition(former, &Member::met);
  for (Member& member : former) {
    // Suspected members are kept until the suspicion is decided. Members that only dial out will ask by themselves.
    if (member.suspected || (members_.size() < options_.active_view && !member.record.dial_only)) {
      members_.push_back(std::move(member));
    } else if (passive_.size() < options_.passive_view && !member.record.dial_only) {
      passive_.push_back({std::move(member.record), member.met});
    }
  }
  std::ranges::sort(members_, {}, [](const Member& member) { return member.record.node; });
  probe_order_.clear();
  probe_next_ = 0;
  for (const Member& member : members_) {
    probe_order_.push_back(member.record.node);
    send(member.record, NeighbourRequest{self_, false}, out);
  }
  if (probe_ && find(probe_->target) == nullptr) probe_.reset();
  view_changed_ = true;
  view_untold_ = true;
}

/// Estimates how many other nodes there are. A guest has up to active_view hosts, so each host sees only that part of
/// all guests.
std::size_t Membership::estimated_others() const {
  const std::size_t hosts = neighbours(false) + passive_.size();
  return hosts + neighbours(true) * std::max(hosts, options_.active_view) / options_.active_view;
}

/// Returns to the full view if all other nodes fit into half of one. A node that can only dial out does so only once
/// none of its neighbours has a partial view any more.
void Membership::become_full_if_small(TimeUs now_us, Actions& out) {
  if (now_us - crowded_us_ < uncrowded_shuffles * options_.shuffle_interval_us) return;
  if (2 * estimated_others() >= options_.full_view_limit) return;
  partial_ = false;
  small_again_ = true;
  pending_.clear();
  std::vector<Reserve> others;
  others.swap(passive_);
  for (const Reserve& other : others) {
    if (!considers_gone(other.record.node)) add_member(other.record, now_us, out);
  }
  for (const Member& member : members_)
    send(member.record, make_sync(true), out);
  view_changed_ = true;
}

void Membership::tend_views(TimeUs now_us, Actions& out) {
  drop_unreachable(out);
  look_for_neighbours(now_us, out);
  shuffle_views(now_us, out);
  push_view(now_us, out);
  become_full_if_small(now_us, out);
}

/// Drops neighbours that can only dial out, if this node is the same. They have become so, or were kept until a
/// suspicion was decided. Nothing would ever be heard from them.
void Membership::drop_unreachable(Actions& out) {
  std::vector<NodeId> unreachable;
  for (const Member& member : members_) {
    if (!member.suspected && !reachable(member.record)) unreachable.push_back(member.record.node);
  }
  for (const NodeId& node : unreachable)
    drop_neighbour(node, out);
}

void Membership::look_for_neighbours(TimeUs now_us, Actions& out) {
  for (std::size_t i = 0; i < pending_.size();) {
    if (now_us < pending_[i].deadline_us) {
      ++i;
      continue;
    }
    const Pending pending = pending_[i];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    view_changed_ = true;
    if (pending.attempts < request_attempts) {
      request_neighbour(pending.record, pending.urgent, now_us, out);
      pending_.back().attempts = pending.attempts + 1;
    } else {
      forget(pending.record.node);
    }
  }
  const std::size_t there = neighbours(false) + pending_.size();
  if (now_us - searched_us_ < search_backoff_us() || there >= options_.active_view) return;
  searched_us_ = now_us;
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < passive_.size(); ++i) {
    const NodeId& node = passive_[i].record.node;
    if (std::ranges::none_of(pending_, [&](const Pending& p) { return p.record.node == node; }))
      candidates.push_back(i);
  }
  // Nodes that have refused come last. A node in need prefers nodes that it has met. A guest asks only as many nodes as
  // it needs, but at least one, since all nodes together may have less room than their guests look for.
  const std::size_t needed = needed_neighbours();
  random_.shuffle(candidates);
  if (needed > 0) std::ranges::stable_partition(candidates, [this](std::size_t i) { return passive_[i].met; });
  std::ranges::stable_sort(candidates, {}, [this](std::size_t i) { return passive_[i].refusals; });
  const std::size_t missing = options_.active_view - there;
  const std::size_t asked = self_.dial_only ? std::clamp<std::size_t>(needed, 1, missing) : missing;
  candidates.resize(std::min(candidates.size(), asked));
  for (const std::size_t index : candidates)
    request_neighbour(MemberRecord(passive_[index].record), needed > 0, now_us, out);
}

/// How many neighbours this node needs urgently, besides those that it has asked with urgency already.
std::size_t Membership::needed_neighbours() const {
  const std::size_t fewest =
      self_.dial_only ? std::min(fewest_of_guest, options_.active_view) : (options_.active_view + 1) / 2;
  const auto asked = static_cast<std::size_t>(std::ranges::count(pending_, true, &Pending::urgent));
  return fewest - std::min(fewest, neighbours(false) + asked);
}

TimeUs Membership::search_backoff_us() const {
  const bool is_patient = self_.dial_only && neighbours(false) > 0;
  return std::min(refusals_backoff_us_,
                  is_patient ? patience_shuffles * options_.shuffle_interval_us : longest_search_backoff_us);
}

void Membership::note_refusal() {
  refusals_backoff_us_ = std::min(2 * refusals_backoff_us_, patience_shuffles * options_.shuffle_interval_us);
}

void Membership::request_neighbour(const MemberRecord& record, bool urgent, TimeUs now_us, Actions& out) {
  if (record.dial_only || record.node == self_.node || find(record.node) != nullptr) return;
  if (std::ranges::any_of(pending_, [&](const Pending& p) { return p.record.node == record.node; })) return;
  if (pending_.size() >= max_active_view) return;
  if (self_.dial_only && members_.empty()) {
    send(record, Join{self_}, out);  // with a Join it may take the place of a guest that has two neighbours
  } else {
    send(record, NeighbourRequest{self_, urgent}, out);
  }
  pending_.push_back({record, now_us + health_.scale(2 * options_.probe_timeout_us), urgent, 1});
  view_changed_ = true;
}

std::size_t Membership::neighbours(bool dial_only) const {
  const auto is_of_kind = [&](const Member& member) { return member.record.dial_only == dial_only; };
  return static_cast<std::size_t>(std::ranges::count_if(members_, is_of_kind));
}

bool Membership::has_room(const MemberRecord& record) const {
  const std::size_t most = options_.active_view + active_view_slack;
  return record.dial_only ? has_guest_room(2 * most) : neighbours(false) < most;
}

/// Guests take no room from nodes that can be dialled. All neighbours together are counted as well, since a guest may
/// become a node that can be dialled.
bool Membership::has_guest_room(std::size_t most) const {
  const std::size_t left = most_neighbours - (options_.active_view + active_view_slack);
  return neighbours(true) < std::min(most, left) && members_.size() < most_neighbours;
}

/// If there is no room, a node in need takes the place of another neighbour of its kind. Among guests that is the one
/// with the most neighbours. If no guest has neighbours to spare, more guests than usual are accepted. Returns false if
/// there is no room.
bool Membership::make_room(const MemberRecord& record, Need need, Actions& out) {
  if (has_room(record)) return true;
  if (record.dial_only) crowded_us_ = last_tick_us_;
  if (need == Need::none) return false;
  std::vector<const Member*> candidates;
  for (const Member& member : members_) {
    if (member.record.dial_only == record.dial_only) candidates.push_back(&member);
  }
  if (candidates.empty()) return false;
  random_.shuffle(candidates);
  const Member* chosen = candidates.front();
  if (record.dial_only) {
    const auto neighbours_of = [](const Member* member) { return member->watchers.size(); };
    chosen = *std::ranges::max_element(candidates, {}, neighbours_of);
    if (neighbours_of(chosen) <= fewest_of_guest) {
      if (has_guest_room(most_neighbours)) return true;
      if (need != Need::knows_nobody || neighbours_of(chosen) < fewest_of_guest) return false;
    }
  }
  const NodeId node = chosen->record.node;
  answer(node, Disconnect{}, out);
  drop_neighbour(node, out);
  return true;
}

void Membership::take_neighbour(const MemberRecord& record, TimeUs now_us, Actions& out) {
  std::erase_if(pending_, [&](const Pending& pending) { return pending.record.node == record.node; });
  forget(record.node);
  view_changed_ = true;
  if (find(record.node) != nullptr) return;
  take_lost(record.node);
  add_member(record, now_us, out);
  view_untold_ = true;
}

/// The other node takes this one for a neighbour, but is none here: one of them has missed the other's decision.
void Membership::taken_for_neighbour(const NodeId& node, TimeUs now_us, Actions& out) {
  if (!partial_ || find(node) != nullptr || considers_gone(node)) return;
  const auto asked = std::ranges::find_if(pending_, [&](const Pending& p) { return p.record.node == node; });
  if (asked != pending_.end()) {
    const MemberRecord record = asked->record;
    if (make_room(record, Need::few, out)) take_neighbour(record, now_us, out);
  } else if (has_room(MemberRecord{})) {
    answer(node, NeighbourRequest{self_, false}, out);
  } else {
    answer(node, Disconnect{}, out);
  }
}

/// The other node has a full view with this node in it. This node has a partial view, and the other is no neighbour.
/// The other may know nobody else. So it is told that the cluster is large, and then looks for neighbours.
void Membership::taken_for_member(const NodeId& node, Actions& out) {
  if (!partial_ || find(node) != nullptr || considers_gone(node)) return;
  if (std::ranges::any_of(pending_, [&](const Pending& pending) { return pending.record.node == node; })) return;
  answer(node, NeighbourRequest{self_, false}, out);
}

void Membership::drop_neighbour(const NodeId& node, Actions& out) {
  const MemberRecord record = find(node)->record;
  const bool met = find(node)->met;
  remove_member(node);
  remember(record, true, last_tick_us_, out, met);
}

void Membership::shuffle_views(TimeUs now_us, Actions& out) {
  if (now_us < next_shuffle_us_) return;
  next_shuffle_us_ = now_us + options_.shuffle_interval_us;
  if (members_.empty()) return;
  const Member& member = members_[random_.below(members_.size())];
  if (!reachable(member.record)) return;
  // The answer comes from the end of the walk, which has to dial the origin. A node that cannot be dialled asks nearby.
  const std::uint8_t hops = self_.dial_only ? 0 : active_walk_hops;
  send(member.record, Shuffle{self_, hops, sample_views(shuffled_active, shuffled_passive)}, out);
}

void Membership::push_view(TimeUs now_us, Actions& out) {
  if (!view_untold_ || now_us < next_push_us_) return;
  next_push_us_ = now_us + options_.probe_interval_us;
  view_untold_ = false;
  const Sync sync = make_sync(false);
  for (const Member& member : members_)
    send(member.record, sync, out);
}

/// Adds the node to the passive view. If the view is full, the node takes the place of another one if `replace`. A node
/// that was not met never replaces the nodes that were met, up to half of the view.
void Membership::remember(const MemberRecord& record, bool replace, TimeUs now_us, Actions& out, bool met) {
  if (record.node == self_.node || find(record.node) != nullptr) return;
  if (considers_gone(record.node)) {
    const std::uint64_t gone = heard_.find(record.node)->incarnation;
    if (record.incarnation == gone && now_us >= next_introduction_us_) {
      // Whoever passed the record on does not know the claim that the node is dead. The node may not know the claim
      // either, so it is told.
      next_introduction_us_ = now_us + options_.probe_interval_us;
      if (!record.dial_only) send(record, Ping{++sequence_}, out);
    }
    if (record.incarnation <= gone) return;
    // A larger incarnation proves its return, even if the news did not arrive.
    heard_.put(record.node, record.incarnation, Claim::alive, now_us);
    out.events.push_back({Change::alive_again, record.node});
    if (take_lost(record.node)) request_neighbour(record, false, now_us, out);
  }
  if (record.dial_only) return;  // a node that can only dial out asks for neighbours by itself
  const auto known = std::ranges::find_if(passive_, [&](const Reserve& r) { return r.record.node == record.node; });
  if (known != passive_.end()) {
    if (record.incarnation > known->record.incarnation) known->record = record;
    known->met |= met;
    return;
  }
  if (passive_.size() < options_.passive_view) {
    passive_.push_back({record, met});
    return;
  }
  crowded_us_ = now_us;
  if (!replace) return;
  const std::size_t known_ones = passive_.size() - std::ranges::partition(passive_, &Reserve::met).size();
  const std::size_t kept = met ? 0 : std::min(known_ones, passive_.size() / 2);
  passive_[kept + random_.below(passive_.size() - kept)] = {record, met};
}

void Membership::forget(const NodeId& node) {
  std::erase_if(passive_, [&](const Reserve& reserve) { return reserve.record.node == node; });
}

std::vector<MemberRecord> Membership::sample_views(std::size_t active, std::size_t passive) {
  std::vector<MemberRecord> sample;
  for (const std::size_t index : some_members(active)) {
    if (!members_[index].record.dial_only) sample.push_back(members_[index].record);
  }
  for (const Reserve& reserve : random_.draw(passive_, passive))
    sample.push_back(reserve.record);
  return sample;
}

const Membership::Member* Membership::random_neighbour(const NodeId& but, const NodeId& nor) {
  for (const std::size_t index : some_members(members_.size())) {
    const MemberRecord& record = members_[index].record;
    if (record.node != but && record.node != nor && reachable(record)) return &members_[index];
  }
  return nullptr;
}

// ---------------------------------------------------------------------------------------------------------- messages

void Membership::on(const NodeId& from, const ForwardJoin& body, const MembershipMessage&, TimeUs now_us,
                    Actions& out) {
  const MemberRecord& newcomer = body.newcomer;
  if (newcomer.node == self_.node || newcomer.dial_only || find(newcomer.node) != nullptr) return;
  if (heard_.gone(newcomer.node, newcomer.incarnation)) return;
  if (!partial_) {
    hear_alive(newcomer, true, 0, now_us, out);
    return;
  }
  const Member* next = random_neighbour(from, newcomer.node);
  if (body.hops_left == 0 || next == nullptr) {
    request_neighbour(newcomer, false, now_us, out);
    return;
  }
  if (body.hops_left == passive_walk_hops) remember(newcomer, true, now_us, out);
  const auto hops = static_cast<std::uint8_t>(std::min(body.hops_left, active_walk_hops) - 1);
  send(next->record, ForwardJoin{newcomer, hops}, out);
}

void Membership::on(const NodeId& from, const NeighbourRequest& body, const MembershipMessage&, TimeUs now_us,
                    Actions& out) {
  const MemberRecord& record = body.sender;
  if (record.node != from || (record.dial_only && self_.dial_only)) {
    ++counters_.malformed;
    return;
  }
  if (considers_gone(from)) {  // it has not refuted yet; the answer tells it what to refute
    send(record, NeighbourReply{self_, false}, out);
    return;
  }
  if (!partial_) {
    hear_alive(record, true, 0, now_us, out);
    send(record, NeighbourReply{self_, true}, out);
    return;
  }
  const bool accepted = find(from) != nullptr || make_room(record, body.urgent ? Need::few : Need::none, out);
  if (accepted) take_neighbour(record, now_us, out);
  send(record, NeighbourReply{self_, accepted}, out);
}

void Membership::on(const NodeId& from, const NeighbourReply& body, const MembershipMessage&, TimeUs now_us,
                    Actions& out) {
  if (body.sender.node != from) {
    ++counters_.malformed;
    return;
  }
  if (!partial_) {
    hear_alive(body.sender, false, 0, now_us, out);
    return;
  }
  const bool asked = std::erase_if(pending_, [&](const Pending& p) { return p.record.node == from; }) > 0;
  view_changed_ |= asked;
  if (!body.accepted) {
    if (find(from) != nullptr && !find(from)->suspected) drop_neighbour(from, out);
    for (Reserve& reserve : passive_) {
      if (reserve.record.node == from && reserve.refusals < most_refusals) ++reserve.refusals;
    }
    note_refusal();
  } else if (find(from) == nullptr) {
    if (asked ? make_room(body.sender, Need::few, out) : has_room(body.sender)) {
      take_neighbour(body.sender, now_us, out);
    } else {
      send(body.sender, Disconnect{}, out);
    }
  }
}

void Membership::on(const NodeId& from, const Disconnect&, const MembershipMessage&, TimeUs, Actions& out) {
  if (!partial_ || find(from) == nullptr) return;
  drop_neighbour(from, out);
  note_refusal();
}

void Membership::on(const NodeId& from, const Shuffle& body, const MembershipMessage&, TimeUs now_us, Actions& out) {
  if (body.origin.node == self_.node) return;
  if (partial_ && body.hops_left > 0 && !body.origin.dial_only) {
    if (const Member* next = random_neighbour(from, body.origin.node)) {
      Shuffle forwarded = body;
      forwarded.hops_left = static_cast<std::uint8_t>(std::min(body.hops_left, active_walk_hops) - 1);
      send(next->record, std::move(forwarded), out);
      return;
    }
  }
  if (!body.origin.dial_only || body.origin.node == from) {
    send(body.origin, ShuffleReply{sample_views(shuffled_active, shuffled_passive)}, out);
  }
  if (!partial_) return;
  remember(body.origin, true, now_us, out);
  for (const MemberRecord& record : body.records)
    remember(record, true, now_us, out);
}

void Membership::on(const NodeId&, const ShuffleReply& body, const MembershipMessage&, TimeUs now_us, Actions& out) {
  if (!partial_) return;
  for (const MemberRecord& record : body.records)
    remember(record, true, now_us, out);
}

}  // namespace gossamer::gossip
