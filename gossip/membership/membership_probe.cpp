// The failure detector. One member is probed in each interval, first directly, then through others. The order is
// shuffled anew after each round (Das et al. 2002, section 4.3). See gossip/membership/membership.hpp.

#include <algorithm>

#include "gossip/check.hpp"
#include "gossip/membership/membership.hpp"

namespace gossamer::gossip {

namespace {

/// A helper sends its nack after this part of the remaining time, so that it arrives before the probe ends.
constexpr TimeUs nack_numerator = 4;
constexpr TimeUs nack_denominator = 5;

}  // namespace

/// Two nodes that can only dial out cannot reach each other.
bool Membership::reachable(const MemberRecord& record) const {
  return !(record.dial_only && self_.dial_only);
}

Membership::Member* Membership::next_target() {
  for (Member& member : members_) {
    if (member.urgent && reachable(member.record)) {
      member.urgent = false;
      return &member;
    }
  }
  for (std::size_t tried = 0; tried <= members_.size(); ++tried) {
    if (probe_next_ >= probe_order_.size()) {
      probe_next_ = 0;
      random_.shuffle(probe_order_);
      if (probe_order_.empty()) return nullptr;
    }
    Member* member = member_of(probe_order_[probe_next_++]);
    GOSSAMER_CHECK(member != nullptr);
    if (reachable(member->record)) return member;
  }
  return nullptr;
}

void Membership::advance_probe(TimeUs now_us, Actions& out) {
  if (probe_) {
    if (!probe_->others_asked && now_us >= probe_->ask_others_us) ask_others(now_us, out);
    if (now_us >= probe_->end_us) conclude_failed_probe(now_us, out);
  }
  if (!probe_ && now_us >= next_probe_us_) start_probe(now_us, out);
}

void Membership::start_probe(TimeUs now_us, Actions& out) {
  next_probe_us_ = now_us + health_.scale(options_.probe_interval_us);
  const Member* member = next_target();
  if (member == nullptr) return;
  probe_ = Probe{.target = member->record.node,
                 .sequence = ++sequence_,
                 .ask_others_us = now_us + health_.scale(options_.probe_timeout_us),
                 .end_us = next_probe_us_};
  ++counters_.probes;
  send(member->record, Ping{probe_->sequence, partial_}, out);
}

/// With partial views the watchers of the target have links to it; with full views all nodes have.
void Membership::ask_others(TimeUs now_us, Actions& out) {
  probe_->others_asked = true;
  const Member* member = find(probe_->target);
  GOSSAMER_CHECK(member != nullptr);
  std::vector<MemberRecord> helpers;
  const auto consider = [&](const MemberRecord& record) {
    if (record.node != probe_->target && record.node != self_.node && reachable(record)) helpers.push_back(record);
  };
  for (const MemberRecord& watcher : member->watchers)
    consider(watcher);
  if (helpers.empty()) {
    for (const Member& other : members_)
      consider(other.record);
  }
  PingRequest request{.sequence = probe_->sequence, .target = member->record};
  request.patience_us = static_cast<std::uint32_t>(
      std::clamp<TimeUs>((probe_->end_us - now_us) * nack_numerator / nack_denominator, 0, max_patience_us));
  const std::span<MemberRecord> drawn = random_.draw(helpers, options_.indirect_probes);
  for (const MemberRecord& helper : drawn)
    send(helper, request, out);
  probe_->helpers = drawn.size();
}

void Membership::conclude_failed_probe(TimeUs now_us, Actions& out) {
  const Probe probe = *probe_;
  probe_.reset();
  ++counters_.probes_failed;
  // Nacks from all helpers show that this node hears well, so the target is silent. Each missing nack is a sign against
  // this node itself (Dadgar et al. 2018, section IV-A).
  health_.change(probe.helpers > 0 ? static_cast<int>(probe.helpers - std::min(probe.helpers, probe.nacks)) : 1);
  const Member* member = find(probe.target);
  GOSSAMER_CHECK(member != nullptr);
  hear_suspected(probe.target, member->record.incarnation, self_.node, false, now_us, out);
  answer(probe.target, News{}, out);  // so that it may refute
}

void Membership::expire_suspicions(TimeUs now_us, Actions& out) {
  for (std::size_t i = 0; i < members_.size();) {
    const Member& member = members_[i];
    if (member.suspected && now_us >= member.suspicion.deadline_us()) {
      ++counters_.deaths;
      bury(NodeId(member.record.node), member.leaving ? Claim::left : Claim::dead, 0, now_us, out);
    } else {
      ++i;
    }
  }
}

void Membership::advance_relays(TimeUs now_us, Actions& out) {
  for (std::size_t i = 0; i < relays_.size();) {
    if (now_us < relays_[i].nack_us) {
      ++i;
      continue;
    }
    const Relay relay = relays_[i];
    relays_.erase(relays_.begin() + static_cast<std::ptrdiff_t>(i));
    answer(relay.origin, Nack{relay.origin_sequence}, out);
  }
}

void Membership::on(const NodeId& from, const Ping& body, const MembershipMessage& message, TimeUs now_us,
                    Actions& out) {
  answer(from, Ack{body.sequence}, out);
  if (body.neighbour) taken_for_neighbour(from, now_us, out);
  if (!message.partial) taken_for_member(from, out);
}

void Membership::on(const NodeId& from, const PingRequest& body, const MembershipMessage&, TimeUs now_us,
                    Actions& out) {
  if (body.target.node == self_.node) {
    answer(from, Ack{body.sequence}, out);
    return;
  }
  const Member* member = find(body.target.node);
  const bool in_reach = member != nullptr ? reachable(member->record) : !body.target.dial_only;
  if (!in_reach || relays_.size() >= max_relays) {
    answer(from, Nack{body.sequence}, out);
    return;
  }
  const Relay relay{from, body.sequence, body.target.node, ++sequence_, now_us + TimeUs{body.patience_us}};
  relays_.push_back(relay);
  send(member != nullptr ? MemberRecord(member->record) : body.target, Ping{relay.sequence}, out);
}

void Membership::on(const NodeId& from, const Ack& body, const MembershipMessage&, TimeUs now_us, Actions& out) {
  if (probe_ && body.sequence == probe_->sequence && (from == probe_->target || probe_->others_asked)) {
    Member* member = member_of(probe_->target);
    GOSSAMER_CHECK(member != nullptr);
    member->last_heard_us = now_us;
    probe_.reset();
    health_.change(-1);
    if (partial_ && from != member->record.node && ++member->unheard >= max_unheard) {
      drop_neighbour(NodeId(member->record.node), out);
    }
    return;
  }
  const auto relay =
      std::ranges::find_if(relays_, [&](const Relay& r) { return r.sequence == body.sequence && r.target == from; });
  if (relay == relays_.end()) return;
  const Relay answered = *relay;
  relays_.erase(relay);
  answer(answered.origin, Ack{answered.origin_sequence}, out);
}

void Membership::on(const NodeId&, const Nack& body, const MembershipMessage&, TimeUs, Actions&) {
  if (probe_ && body.sequence == probe_->sequence && probe_->nacks < probe_->helpers) ++probe_->nacks;
}

}  // namespace gossamer::gossip
