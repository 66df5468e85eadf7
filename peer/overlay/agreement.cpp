// What the members agree on, inside the overlay: who is denied, which keys admit, who was invited (see links.hpp). What
// is told to whom is decided in spread.cpp.

#include <ifaddrs.h>
#include <net/if.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <asio/ip/address.hpp>
#include <cstring>

#include "peer/overlay/links.hpp"
#include "peer/wire/validate.hpp"

namespace gossamer::peer {
namespace {

/// The machine's own addresses at which others may reach it, for a node that listens at all of them.
std::vector<std::string> own_hosts(bool ipv6) {
  std::vector<std::string> hosts;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return hosts;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    asio::ip::tcp::endpoint endpoint;
    const bool is_v4 = entry->ifa_addr->sa_family == AF_INET;
    if (!is_v4 && !(ipv6 && entry->ifa_addr->sa_family == AF_INET6)) continue;
    endpoint.resize(is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::memcpy(endpoint.data(), entry->ifa_addr, endpoint.size());
    const asio::ip::address address = endpoint.address();
    if (address.is_v6() && address.to_v6().is_link_local()) continue;
    hosts.push_back(address.to_string());
  }
  ::freeifaddrs(list);
  return hosts;
}

/// Addresses that other machines can reach first; each once.
void order(std::vector<Address>& addresses) {
  std::ranges::stable_partition(addresses, [](const Address& address) { return !address.is_loopback(); });
  std::vector<Address> once;
  for (const Address& address : addresses) {
    if (std::ranges::find(once, address) == once.end()) once.push_back(address);
  }
  addresses = std::move(once);
}

}  // namespace

// --- what is told and heard ------------------------------------------------------------------------------------------

void Overlay::Core::tend_spread() {
  if (const auto key = spread_.promotion(now())) {
    KeyRing ring = spread_.ring();
    ring.promote(*key);
    if (const auto kept = owner_.keep_key_ring(ring); !kept) log_->error("{}", kept.error());
    spread_.set_ring(std::move(ring), now());
    use_ring();
    log_->info("this node now listens with the cluster key {}", hex(*key));
  }
  listen_with_slot();
  for (const LinkPtr& link : links_) {
    if (!link->is_up() || !link->broken.empty()) continue;
    while (const auto message = spread_.next_for(link->node, now())) {
      if (post(*link, Channel::control, encode(*message)) != SendResult::sent) break;
      spread_.said(link->node);
    }
  }
}

void Overlay::Core::hear(const LinkPtr& link, const DenialList& list) {
  const Spread::Outcome outcome = spread_.heard(link->node, list, time_of_day_(), now());
  if (outcome == Spread::Outcome::refused && log_throttle_.take(now())) {
    log_->warn("{} tells of denials that are dated ahead of the clock here, or too many", link->node.brief());
  }
  if (outcome != Spread::Outcome::news) return;
  for (const Denial& denial : list.records) {
    if (denial.denied && denial.node == identity_.node) {
      log_->error("the cluster denies this node{}{}: an operator has to allow it (gossamerctl allow {})",
                  denial.reason.empty() ? "" : ", because: ", denial.reason, identity_.node.full());
    }
  }
  log_->info("heard from {} who is denied: {} records", link->node.brief(), spread_.denials().entries().size());
  enforce_denials();
  turns_->happened(DenialsChanged{});
}

void Overlay::Core::hear(const LinkPtr& link, const RingState& state) {
  const Spread::Outcome outcome = spread_.heard(link->node, state, time_of_day_(), now());
  if (outcome == Spread::Outcome::refused && log_throttle_.take(now())) {
    log_->warn("{} tells of cluster keys that are dated ahead of the clock here, or too many", link->node.brief());
  }
  if (outcome != Spread::Outcome::news) return;
  log_->info("heard from {} of a change of the key ring: {} keys", link->node.brief(), spread_.ring().keys().size());
  // Kept before the next tick tells anyone that we hold it. What cannot be kept is used all the same: the others will.
  if (const auto kept = owner_.keep_key_ring(spread_.ring()); !kept) {
    log_->error("the new cluster keys are in use, but will be lost at the next start: {}", kept.error());
  }
  use_ring();
}

/// Our own change: kept for the next start before it is used, or not made at all.
std::expected<void, std::string> Overlay::Core::change_ring(KeyRing ring) {
  if (auto kept = owner_.keep_key_ring(ring); !kept) return kept;
  spread_.set_ring(std::move(ring), now());
  use_ring();
  return {};
}

void Overlay::Core::use_ring() {
  keys_ = spread_.ring().cluster_keys();
  listen_with_slot();
}

void Overlay::Core::listen_with_slot() {
  const ClusterKey& key = keys_.all()[spread_.key_slot(now() - started_at_)];
  const auto listening = listener_.listen_with(key);
  if (!listening && !cannot_change_key_) log_->error("{}", listening.error());
  cannot_change_key_ = !listening;
}

// --- who is denied ---------------------------------------------------------------------------------------------------

void Overlay::Core::enforce_denials() {
  denied_ = denied_here_;
  for (const auto& [node, entry] : spread_.denials().entries()) {
    if (entry.denial.denied && node != identity_.node) denied_.insert(node);
  }
  listener_.set_denied(denied_);
  for (const LinkPtr& link : links_) {
    if (!denied_.contains(link->node) || !link->broken.empty()) continue;
    if (link->is_up()) say(*link, Channel::control, Rejected{RejectReason::denied, "this node is denied"});
    set_broken(*link, "the node is denied");
  }
}

std::expected<Denial, std::string> Overlay::Core::decide(const NodeId& node, bool denied, const std::string& reason) {
  turns_->read_clock();
  if (!is_plain_text(reason, max_text_bytes)) {
    return std::unexpected("the reason is longer than " + std::to_string(max_text_bytes) + " bytes or not plain UTF-8");
  }
  if (denied && node == identity_.node) {
    return std::unexpected("that is this node itself: run it on another member, or stop gossamerd here");
  }
  const auto denial = spread_.decide(node, denied, reason, time_of_day_());
  if (!denial) {
    return std::unexpected("there are " + std::to_string(max_denials) +
                           " nodes denied, which is the most: change the cluster key instead, and retire the old one");
  }
  log_->info("node {} is {} in the whole cluster", node.brief(), denied ? "denied" : "allowed");
  enforce_denials();
  turns_->happened(DenialsChanged{});
  return *denial;
}

// --- which keys admit ------------------------------------------------------------------------------------------------

std::vector<KeyStatus> Overlay::Core::key_ring() const {
  std::vector<KeyStatus> keys;
  for (const RingKey& key : spread_.ring().keys()) {
    const Fingerprint fingerprint = key.key.fingerprint();
    keys.push_back({fingerprint, key.made_at, keys.empty(), spread_.holders(fingerprint)});
  }
  return keys;
}

std::expected<Fingerprint, std::string> Overlay::Core::rotate_key() {
  turns_->read_clock();
  KeyRing ring = spread_.ring();
  const auto fingerprint = ring.rotate(time_of_day_());
  if (!fingerprint) return fingerprint;
  if (const auto changed = change_ring(std::move(ring)); !changed) return std::unexpected(changed.error());
  log_->info("made the cluster key {}: it is told to every member", hex(*fingerprint));
  return fingerprint;
}

std::expected<void, std::string> Overlay::Core::retire_key(const Fingerprint& fingerprint) {
  turns_->read_clock();
  KeyRing ring = spread_.ring();
  if (const auto retired = ring.retire(fingerprint, time_of_day_()); !retired) return retired;
  if (const auto changed = change_ring(std::move(ring)); !changed) return changed;
  log_->info("retired the cluster key {}: every member is told", hex(fingerprint));
  return {};
}

// --- who was invited -------------------------------------------------------------------------------------------------

std::expected<std::string, std::string> Overlay::Core::invite(TimeUs validity_us, std::vector<Address> addresses) {
  if (addresses.empty()) {
    if (const auto own = parse_address(advertised_, AddressUse::listen)) {
      if (own->is_wildcard()) {
        for (const std::string& host : own_hosts(own->is_ipv6()))
          addresses.push_back({host, own->port});
      } else {
        addresses.push_back(*own);
      }
    }
    for (const auto& [node, record] : nodes_) {
      const auto address = parse_address(record.address, AddressUse::dial);
      if (record.link && address) addresses.push_back(*address);
    }
    order(addresses);
  }
  if (addresses.empty()) {
    return std::unexpected(
        "neither this node nor a neighbour can be dialled: say where members answer, with --address tcp://HOST:PORT");
  }
  return invitation_line(make_invitation(keys_.first(), std::move(addresses), time_of_day_() + validity_us));
}

std::optional<Overlay::Core::Refusal> Overlay::Core::refusal_of(const InvitationClaim& claim,
                                                                const Arrival& arrival) const {
  if (hex(claim.public_key) != arrival.user_id) {
    return Refusal{RejectReason::bad_proof, "the claim's key is not the connection's"};
  }
  if (!is_claim_proven(keys_, claim)) {
    return Refusal{RejectReason::invitation,
                   "the invitation was made with a key that is no longer accepted here; ask for a new one (gossamerctl "
                   "invite)"};
  }
  if (const TimeUs now = time_of_day_(); now >= claim.expires_at) {
    return Refusal{RejectReason::invitation, "the invitation expired at " + date_text(claim.expires_at) +
                                                 ", and here it is " + date_text(now) +
                                                 "; ask for a new one (gossamerctl invite)"};
  }
  const NodeId node = node_id(claim.public_key);
  if (node == identity_.node) return Refusal{RejectReason::self, "that is this node itself: it needs no invitation"};
  if (denied_.contains(node)) return Refusal{RejectReason::denied, "the node is denied"};
  return std::nullopt;
}

void Overlay::Core::answer_claim(const InvitationClaim& claim, const Arrival& arrival) {
  if (const auto refusal = refusal_of(claim, arrival)) return refuse(arrival, *refusal);
  if (log_throttle_.take(now())) {
    log_->info("gave the cluster keys to node {} at {}, which was invited", node_id(claim.public_key).brief(),
               arrival.host);
  }
  InvitationGrant grant{spread_.ring().state()};
  const auto meter = std::make_shared<std::atomic<std::size_t>>(0);
  (void)listener_.send(arrival.routing_id, encode(ControlMessage(std::move(grant))), meter);
}

std::expected<void, std::string> Overlay::Core::join(const Invitation& invitation, Joined joined) {
  if (turns_->stopped()) return std::unexpected("this node is stopping");
  if (claim_) return std::unexpected("this node is already joining: wait for the end of that");
  if (std::ranges::any_of(links_, [](const LinkPtr& link) { return link->is_up(); })) {
    return std::unexpected(
        "this node is linked to others, and joining would take it out of their cluster: stop gossamerd, remove its "
        "cluster key file and its peers, and join after the next start");
  }
  claim_ = std::make_shared<ClaimAttempt>(
      loop_, context_, identity_, invitation, options_.interface,
      [this, invitation, joined = std::move(joined)](std::expected<InvitationGrant, std::string> grant) {
        turns_->run([&] {
          claim_.reset();
          turns_->happened(JoinEnded{joined, claim_ended(invitation, std::move(grant))});
        });
      });
  claim_->start();
  return {};
}

std::expected<void, std::string> Overlay::Core::claim_ended(const Invitation& invitation,
                                                            std::expected<InvitationGrant, std::string> grant) {
  if (!grant) return std::unexpected(grant.error());
  auto ring = KeyRing::adopt(grant->ring);
  if (!ring) return std::unexpected(ring.error());
  // In place of our own: a key that this node made for itself is no business of the cluster's.
  if (auto changed = change_ring(std::move(*ring)); !changed) return changed;
  for (const Address& address : invitation.addresses)
    book_.add_configured(address, now());
  tell_contacts();
  log_->info("this node was given the cluster keys of those who invited it");
  return {};
}

}  // namespace gossamer::peer
