#include "peer/overlay/roster.hpp"

#include <algorithm>

namespace gossamer::peer {
namespace {

using gossip::Membership;

/// Translates every record in a message. False if the record that the message is about is of no use here.
struct Localiser {
  const std::function<std::optional<MemberRecord>(const MemberRecord&)>& fit;

  bool one(MemberRecord& record) const {
    std::optional<MemberRecord> fitting = fit(record);
    if (fitting) record = std::move(*fitting);
    return fitting.has_value();
  }
  void all(std::vector<MemberRecord>& records) const {
    std::erase_if(records, [this](MemberRecord& record) { return !one(record); });
  }

  bool operator()(PingRequest& body) const {
    if (one(body.target)) return true;
    body.target.dial_only = true;  // says that the target cannot be reached from here
    body.target.address.clear();
    return true;
  }
  bool operator()(Sync& body) const {
    std::erase_if(body.entries, [this](SyncEntry& entry) { return !one(entry.record); });
    return one(body.sender);
  }
  bool operator()(Join& body) const { return one(body.sender); }
  bool operator()(ForwardJoin& body) const { return one(body.newcomer); }
  bool operator()(NeighbourRequest& body) const { return one(body.sender); }
  bool operator()(NeighbourReply& body) const { return one(body.sender); }
  bool operator()(Shuffle& body) const {
    all(body.records);
    return one(body.origin);
  }
  bool operator()(ShuffleReply& body) const {
    all(body.records);
    return true;
  }
  template <class Plain>
  bool operator()(Plain&) const {
    return true;
  }
};

}  // namespace

std::optional<MemberRecord> localised(MemberRecord record, const NodeId& from, const std::string& seen_host,
                                      const std::string& known) {
  if (record.address.empty()) return record;  // valid() has checked that the node only dials out
  auto address = parse_address(record.address, AddressUse::listen);
  if (!address || address->port == 0) return std::nullopt;
  const bool own = record.node == from;
  if (own && address->is_wildcard()) address->host = seen_host;
  if (!address->is_wildcard() && (!address->is_loopback() || Address{seen_host}.is_loopback())) {
    record.address = address->text();
  } else if (own) {
    record.dial_only = true;  // the node listens for its own machine only
    record.address.clear();
  } else if (!known.empty()) {
    record.address = known;
  } else {
    return std::nullopt;
  }
  return record;
}

Roster::Roster(const gossip::MembershipOptions& options, MemberRecord self, gossip::Random random, TimeUs now,
               Host& host)
    : host_(host),
      membership_(options, std::move(self), random, now),
      tick_us_(options.tick_us),
      next_tick_(now + options.tick_us) {}

/// Nothing is dialled or hung up here: the overlay asks keeps() and wanted() in its own time. So a link that is lost on
/// the way, or an address that changes meanwhile, needs no treatment of its own.
template <class Step>
void Roster::act(const NodeId& speaker, TimeUs now, Step step) {
  Membership::Actions actions;
  step(actions);
  for (Membership::Send& item : actions.send)
    send(item, now);
  for (const Membership::Event& event : actions.events)
    changes_.push_back({event.node, event.change, event.node == speaker});
}

// --- what comes in --------------------------------------------------------------------------------------------------

void Roster::set_contacts(std::vector<std::string> addresses, TimeUs now) {
  act({}, now, [&](Membership::Actions& actions) { membership_.join(std::move(addresses), now, actions); });
}

void Roster::tick(TimeUs now) {
  if (now < next_tick_) return;
  next_tick_ = now + tick_us_;
  std::erase_if(errands_, [&](const Errand& errand) { return now - errand.since > errand_us; });
  act({}, now, [&](Membership::Actions& actions) { membership_.tick(now, actions); });
}

void Roster::receive(const NodeId& from, MembershipMessage message, const std::string& seen_host, TimeUs now) {
  const std::function<std::optional<MemberRecord>(const MemberRecord&)> fit =
      [&](const MemberRecord& record) -> std::optional<MemberRecord> {
    if (host_.is_denied(record.node)) return std::nullopt;
    if (record.node == membership_.self().node) return record;  // only its incarnation counts
    const Membership::Member* member = membership_.find(record.node);
    return localised(record, from, seen_host, member ? member->record.address : host_.seen_address(record.node));
  };
  const Localiser localise{fit};
  std::erase_if(message.rumours, [&](Rumour& rumour) {
    return host_.is_denied(rumour.subject.node) || (rumour.claim == Claim::alive && !localise.one(rumour.subject));
  });
  if (!std::visit(localise, message.body)) return;
  const bool leaves = std::holds_alternative<Leave>(message.body);
  act(leaves ? from : NodeId{}, now,
      [&](Membership::Actions& actions) { membership_.receive(from, message, now, actions); });
}

bool Roster::link_up(const NodeId& node, std::uint64_t incarnation, const std::string& dialled, TimeUs now) {
  act({}, now, [&](Membership::Actions& actions) { membership_.link_up(node, incarnation, now, actions); });
  return send_waiting(node, dialled);
}

void Roster::link_down(const NodeId& node, TimeUs now) {
  act({}, now, [&](Membership::Actions& actions) { membership_.link_down(node, now, actions); });
}

/// A loopback address does not replace another one, since it is of no use to nodes on other machines.
void Roster::seen_at(const NodeId& node, const std::string& address) {
  const Membership::Member* member = membership_.find(node);
  const auto seen = parse_address(address, AddressUse::dial);
  if (member == nullptr || !seen) return;
  const auto known = parse_address(member->record.address, AddressUse::dial);
  if (!seen->is_loopback() || !known || known->is_loopback()) membership_.seen_at(node, seen->text());
}

void Roster::greet(const NodeId& node, TimeUs now) {
  act({}, now, [&](Membership::Actions& actions) { membership_.greet(node, now, actions); });
}

void Roster::leave(TimeUs now) {
  errands_.clear();
  Membership::Actions actions;
  membership_.leave(now, actions);
  for (const Membership::Send& item : actions.send)
    (void)host_.send_membership(item.to, item.message);  // no link is made for a goodbye
}

// --- what goes out --------------------------------------------------------------------------------------------------

void Roster::send(Membership::Send& item, TimeUs now) {
  if (item.to == NodeId{}) {
    if (const auto node = host_.node_at(item.address); node && host_.send_membership(*node, item.message)) return;
  } else if (host_.send_membership(item.to, item.message)) {
    return;
  }
  if (item.address.empty()) return;
  auto errand = std::ranges::find_if(errands_, [&](const Errand& waiting) {
    return waiting.to == item.to && (item.to != NodeId{} || waiting.address == item.address);
  });
  if (errand == errands_.end()) {
    if (errands_.size() >= max_errands) errands_.erase(errands_.begin());
    errand = errands_.insert(errands_.end(), Errand{.to = item.to, .address = {}, .since = now, .messages = {}});
  }
  errand->address = item.address;
  errand->since = now;
  if (errand->messages.size() >= max_errand_messages) errand->messages.erase(errand->messages.begin());
  errand->messages.push_back(std::move(item.message));
}

bool Roster::send_waiting(const NodeId& node, const std::string& dialled) {
  const auto due = std::stable_partition(errands_.begin(), errands_.end(), [&](const Errand& errand) {
    return errand.to != node && (errand.to != NodeId{} || dialled.empty() || errand.address != dialled);
  });
  for (auto errand = due; errand != errands_.end(); ++errand) {
    for (const MembershipMessage& message : errand->messages)
      (void)host_.send_membership(node, message);
  }
  const bool any = due != errands_.end();
  errands_.erase(due, errands_.end());
  return any;
}

// --- which links ----------------------------------------------------------------------------------------------------

bool Roster::keeps(const NodeId& node) const {
  return std::ranges::binary_search(membership_.view(), node);
}

bool Roster::wants(const NodeId& node) const {
  return keeps(node) || std::ranges::any_of(errands_, [&](const Errand& errand) { return errand.to == node; });
}

/// With full views every node that is known knows this node, too, so no link is unexpected.
std::vector<Roster::Wanted> Roster::wanted() const {
  std::vector<Wanted> all;
  for (const NodeId& node : membership_.view()) {
    const Membership::Member* member = membership_.find(node);
    if (member != nullptr && !member->record.address.empty()) all.push_back({node, member->record.address, false});
  }
  for (const Errand& errand : errands_) {
    if (errand.to != NodeId{}) all.push_back({errand.to, errand.address, membership_.partial()});
  }
  return all;
}

}  // namespace gossamer::peer
