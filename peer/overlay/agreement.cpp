#include "peer/overlay/agreement.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "gossip/plain_text.hpp"
#include "peer/links/own_addresses.hpp"

namespace gossamer::peer {
namespace {

/// The machine's own addresses at which others may reach a node that listens at all addresses.
std::vector<std::string> own_hosts(bool ipv6) {
  std::vector<std::string> hosts;
  const auto all = interface_addresses();
  if (!all) return hosts;
  for (const InterfaceAddress& own : *all) {
    if (own.address.is_v4() || (ipv6 && !own.address.to_v6().is_link_local())) hosts.push_back(own.address.to_string());
  }
  return hosts;
}

/// Puts addresses that other machines can reach first, and removes repeated ones.
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

void Agreement::tick() {
  if (const auto key = spread_.promotion(self_.now())) {
    KeyRing ring = spread_.ring();
    ring.promote(*key);
    (void)self_.owner.keep_key_ring(ring);
    spread_.set_ring(std::move(ring), self_.now());
    use_ring();
    self_.log->info("this node now listens with the cluster key {}", hex(*key));
  }
  if (self_.now() >= next_ahead_look_) forget_ahead();
  listen_with_slot();
  tell();
  std::erase_if(waiting_, [this](const auto& known) {
    return known.second.last_at + waiting_remembered_us < self_.time_of_day();
  });
  // This comes after tell(), so that nodes whose certificates no longer count have been told why, and can tell others.
  enforce_certificates();
}

/// Forgets what was decided here while the clock was far ahead. The ring and the denials are stored without it.
void Agreement::forget_ahead() {
  next_ahead_look_ = self_.now() + ahead_look_us;
  const std::vector<std::string> forgotten = spread_.forget_ahead(self_.time_of_day(), self_.now());
  if (forgotten.empty()) return;
  for (const std::string& what : forgotten) {
    self_.log->warn(
        "{} is more than a day ahead of the clock here, and no other member has taken it: it is forgotten; decide it "
        "again if it is still wanted",
        what);
    note_taken(self_.identity.node, "forgotten, since it was dated ahead of the clock: " + what);
  }
  (void)self_.owner.keep_key_ring(spread_.ring());
  use_ring();
  enforce_denials();
}

void Agreement::tell() {
  for (const LinkPtr& link : table_.links()) {
    if (!link->is_up() || !link->broken.empty()) continue;
    while (const auto message = spread_.next_for(link->node, self_.now())) {
      if (sender_.post(*link, Channel::control, encode(*message)) != SendResult::sent) break;
      spread_.said(link->node);
    }
  }
}

void Agreement::hear(const NodeId& from, DenialList list) {
  const Hearsay outcome = spread_.heard(from, list, self_.time_of_day(), self_.now());
  note_refusal(from);
  if (outcome != Hearsay::news) return;
  for (const Denial& denial : list.records) {
    note_taken(from, words_of(denial) + signed_words(denial));
    self_.log->warn("{} tells that node {} is {} in the whole cluster{}{}", from.brief(), denial.node.full(),
                    denial.denied ? "denied" : "allowed", denial.reason.empty() ? "" : ", because: ", denial.reason);
    if (denial.denied && denial.node == self_.identity.node) {
      self_.log->error("the cluster denies this node{}{}: an operator has to allow it (gossamerctl allow {})",
                       denial.reason.empty() ? "" : ", because: ", denial.reason, self_.identity.node.full());
    }
  }
  enforce_denials();
}

void Agreement::hear(const NodeId& from, const RingState& state) {
  const KeyRing before = spread_.ring();
  const Hearsay outcome = spread_.heard(from, state, self_.time_of_day(), self_.now());
  if (state.authority && state.authority != authority()) {
    note_refused(from, "another authority than this node follows (gossamerctl authority use says whom to follow)");
  } else {
    note_refusal(from);
  }
  if (outcome != Hearsay::news) return;
  self_.log->warn("heard from {} of a change of the key ring: {} keys", from.brief(), spread_.ring().keys().size());
  follow_change(from, before);
}

void Agreement::hear(const NodeId& from, const DeputyList& list) {
  const KeyRing before = spread_.ring();
  const Hearsay outcome = spread_.heard(from, list, self_.time_of_day(), self_.now());
  note_refusal(from);
  if (outcome == Hearsay::news) follow_change(from, before);
}

DeputyList Agreement::deputies_to_show() const {
  DeputyList list = spread_.ring().deputy_list();
  const auto own = spread_.certificates().entries().find(self_.identity.node);
  const auto signer = own == spread_.certificates().entries().end() ? std::nullopt : own->second.signer;
  std::ranges::sort(list.records, std::ranges::greater(),
                    [&](const Deputy& deputy) { return std::pair(deputy.key == signer, deputy.decided_at); });
  if (list.records.size() > max_deputies_in_hello) list.records.resize(max_deputies_in_hello);
  return list;
}

void Agreement::take_shown(const NodeId& node, const DeputyList& list) {
  if (spread_.ring().knows(list)) return;
  const KeyRing before = spread_.ring();
  if (spread_.shown(list, self_.time_of_day(), self_.now()) == Hearsay::news) follow_change(node, before);
}

/// Follows a change of the ring that a neighbour has told.
void Agreement::follow_change(const NodeId& from, const KeyRing& before) {
  if (authority() != before.authority())
    self_.log->warn("heard from {} that {} decides in this cluster: what it has not signed is not followed from now on",
                    from.brief(), hex(*authority()));
  note_changes(from, before);
  if (ring_state().rule != before.state().rule)
    self_.log->warn("heard from {} that nodes are let in with {} from now on", from.brief(),
                    asks_for_certificates() ? "a certificate only" : "a cluster key");
  // The ring is stored before the next tick tells anyone that we hold it. If that fails, the ring is used all the same,
  // because the others will use it.
  (void)self_.owner.keep_key_ring(spread_.ring());
  use_ring();
  forget_of_former(before);
}

/// After a change of who may sign: decisions of deputies who may not any more are no longer enforced, and no longer
/// kept.
void Agreement::forget_of_former(const KeyRing& before) {
  if (spread_.ring().deciders() == before.deciders()) return;
  enforce_denials();
  self_.turns->happened(DenialsChanged{});
  self_.turns->happened(CertificatesChanged{});
}

void Agreement::hear(const NodeId& from, CertificateList list) {
  const Hearsay outcome = spread_.heard(from, list, self_.time_of_day(), self_.now());
  note_refusal(from);
  if (outcome != Hearsay::news) return;
  for (const Certificate& certificate : list.records)
    self_.log->debug("heard from {} of the certificate of {}", from.brief(), certificate.node.brief());
  self_.turns->happened(CertificatesChanged{});
}

/// Makes a change that was asked for here: it is stored before it is used, or not made at all. Neighbours are told of
/// each change, even if the next one takes it back: a neighbour that hears of another authority tells again what this
/// node has forgotten by the change.
std::expected<void, std::string> Agreement::change_ring(KeyRing ring) {
  const KeyRing before = spread_.ring();
  if (auto kept = self_.owner.keep_key_ring(ring); !kept) return kept;
  spread_.set_ring(std::move(ring), self_.now());
  note_changes(self_.identity.node, before);
  use_ring();
  forget_of_former(before);
  tell();
  return {};
}

void Agreement::use_ring() {
  keys_ = spread_.ring().cluster_keys();
  note_rule();
  listen_with_slot();
}

void Agreement::note_rule() {
  if (!asks_for_certificates()) {
    asks_since_.reset();
  } else if (!asks_since_) {
    asks_since_ = self_.now();
  }
}

void Agreement::listen_with_slot() {
  const ClusterKey& key = keys_.all()[spread_.key_slot(self_.now() - started_at_)];
  const auto listening = listener_.listen_with(key);
  if (!listening && !cannot_change_key_) self_.log->error("{}", listening.error());
  cannot_change_key_ = !listening;
}

// --- who has decided what -------------------------------------------------------------------------------------------

/// Words for the log: whether the decision is signed, and by whom if not by the authority itself.
template <class Decision>
std::string Agreement::signed_words(const Decision& decision) const {
  const auto& deciders = spread_.ring().deciders();
  if (!deciders) return decision.signature ? " (signed)" : "";
  const auto signer = deciders->signer_of(decision.statement(), decision.signature);
  if (!signer) return "";
  return *signer == deciders->authority ? " (signed)" : " (signed by " + deciders->name_of(*signer) + ")";
}

void Agreement::note_taken(const NodeId& by, std::string what) {
  if (by == self_.identity.node && !operator_.empty()) what += ", by " + operator_;
  audit_.note_taken(self_.time_of_day(), by, std::move(what));
  self_.turns->happened(DenialsChanged{});
}

void Agreement::note_refused(const NodeId& told_by, const std::string& what) {
  ++self_.counters.decisions_refused;
  audit_.note_refused(self_.time_of_day(), told_by, what);
  if (!self_.log_throttle.take(self_.now())) return;  // the audit is stored with the next change
  self_.log->warn("{} tells of {}", told_by.brief(), what);
  self_.turns->happened(DenialsChanged{});
}

/// Notes what was refused of the message that was heard last.
void Agreement::note_refusal(const NodeId& told_by) {
  if (!spread_.refusal().empty()) note_refused(told_by, spread_.refusal());
}

/// Notes what has changed in the key ring since it was as `before` says.
void Agreement::note_changes(const NodeId& told_by, const KeyRing& ring_before) {
  const RingState before = ring_before.state();
  const RingState now = ring_state();
  const auto is_key_of = [](const RingState& state, const Fingerprint& fingerprint) {
    return std::ranges::any_of(state.keys, [&](const RingKey& key) { return key.key.fingerprint() == fingerprint; });
  };
  if (now.authority != before.authority)
    note_taken(told_by,
               now.authority ? hex(*now.authority) + " decides in the cluster" : "nobody's signature is asked for");
  const std::vector<Deputy> known = ring_before.deputy_list().records;
  for (const Deputy& deputy : spread_.ring().deputy_list().records) {
    if (std::ranges::find(known, deputy) == known.end())
      note_taken(told_by, deputy.name + " (" + hex(deputy.key) + ") may sign " + words_of_powers(deputy.powers) +
                              " in the authority's place (signed)");
  }
  if (now.rule != before.rule)
    note_taken(told_by, now.rule && now.rule->certificates ? "nodes need a certificate" : "a cluster key is enough");
  for (const RingKey& key : now.keys) {
    const Fingerprint fingerprint = key.key.fingerprint();
    if (!is_key_of(before, fingerprint))
      note_taken(told_by, "cluster key " + hex(fingerprint) + " admits" + signed_words(key));
  }
  for (const RetiredKey& key : now.retired) {
    if (is_key_of(before, key.fingerprint))
      note_taken(told_by, "cluster key " + hex(key.fingerprint) + " is retired" + signed_words(key));
  }
}

// --- who is denied ---------------------------------------------------------------------------------------------------

void Agreement::set_denied(const std::vector<NodeId>& nodes) {
  denied_here_ = std::set<NodeId>(nodes.begin(), nodes.end());
  enforce_denials();
}

void Agreement::enforce_denials() {
  denied_ = denied_here_;
  for (const auto& [node, entry] : spread_.denials().entries()) {
    if (entry.denial.denied && node != self_.identity.node) denied_.insert(node);
  }
  listener_.set_denied(denied_);
  for (const LinkPtr& link : table_.links()) {
    if (!denied_.contains(link->node) || !link->broken.empty()) continue;
    if (link->is_up()) sender_.say(*link, Channel::control, Rejected{RejectReason::denied, "this node is denied"});
    sender_.set_broken(*link, "the node is denied");
  }
}

std::expected<Denial, std::string> Agreement::propose(const NodeId& node, bool denied, const std::string& reason) {
  self_.turns->read_clock();
  if (!is_plain_text(reason, max_text_bytes)) {
    return std::unexpected("the reason must be " + plain_text_rule(max_text_bytes));
  }
  if (denied && node == self_.identity.node) {
    return std::unexpected("that is this node itself: run it on another member, or stop gossamerd here");
  }
  return spread_.denials().propose(node, denied, reason, self_.time_of_day(), authority().has_value());
}

std::expected<void, std::string> Agreement::decide(const Denial& denial) {
  self_.turns->read_clock();
  if (auto consent = check_signed(denial); !consent) return consent;
  if (!spread_.decide(denial)) return std::unexpected("another decision about the node has come meanwhile: try again");
  self_.log->warn("node {} is {} in the whole cluster", denial.node.brief(), denial.denied ? "denied" : "allowed");
  enforce_denials();
  note_taken(self_.identity.node, words_of(denial) + signed_words(denial));
  return {};
}

template <class Decision>
std::expected<void, std::string> Agreement::check_signed(const Decision& decision) const {
  const auto& deciders = spread_.ring().deciders();
  if (!deciders || deciders->have_signed(decision)) return {};
  return std::unexpected("neither the cluster's authority " + hex(deciders->authority) +
                         " has signed it, nor a deputy who may (gossamerctl authority show)");
}

std::expected<void, std::string> Agreement::set_authority(const std::optional<PublicKey>& authority,
                                                          const Signatures& signatures) {
  self_.turns->read_clock();
  KeyRing ring = spread_.ring();
  ring.set_authority(authority);
  ring.take_signatures(signatures);
  if (auto changed = change_ring(std::move(ring)); !changed) return changed;
  if (!authority) {
    self_.log->warn(
        "nobody's signature is asked for here any more: every member decides, until a neighbour names another "
        "authority");
    return {};
  }
  self_.log->warn("{} decides in this cluster: every member is told", hex(*authority));
  for (const auto& [node, entry] : std::map(spread_.denials().entries())) {
    Denial denial = entry.denial;
    const auto found = signatures.find(denial.statement());
    if (denial.signature || found == signatures.end()) continue;
    denial.signature = found->second;
    if (check_signed(denial)) spread_.decide(denial);
  }
  self_.turns->happened(DenialsChanged{});
  return {};
}

// --- who has a certificate -------------------------------------------------------------------------------------------

const Certificate* Agreement::held_by(const NodeId& node) const {
  return authority() ? spread_.certificates().of(node) : nullptr;
}

const Certificate* Agreement::certificate_of(const NodeId& node) const {
  const Certificate* const held = held_by(node);
  const bool counts = held != nullptr && self_.time_of_day() < held->warrant.valid_until &&
                      !denied_.contains(NodeId{held->warrant.invitation}) && !denied_.contains(node);
  return counts ? held : nullptr;
}

Sponsor Agreement::sponsor_of(const NodeId& node) const {
  const Sponsor sponsor = sponsor_by_certificate(node);
  return sponsor == sponsor_by_certificate(self_.identity.node) ? no_sponsor : sponsor;
}

Sponsor Agreement::sponsor_by_certificate(const NodeId& node) const {
  const Certificate* const certificate = certificate_of(node);
  if (certificate == nullptr) return no_sponsor;
  const auto& signer = spread_.certificates().entries().at(node).signer;
  const bool by_deputy = signer && *signer != *authority();
  Sponsor sponsor = no_sponsor;
  std::memcpy(&sponsor, by_deputy ? signer->data() : certificate->warrant.invitation.data(), sizeof sponsor);
  return sponsor;
}

Rights Agreement::rights_of(const NodeId& node) const {
  if (!asks_for_certificates()) return {};
  const Certificate* const certificate = certificate_of(node);
  return certificate != nullptr ? certificate->warrant.rights : Rights{.role = NodeRole::follows, .jobs = ""};
}

std::expected<void, std::string> Agreement::take_and_tell(const Certificate& certificate) {
  const auto taken = spread_.take(certificate, self_.time_of_day(), self_.now());
  if (!taken) return std::unexpected(taken.error());
  if (*taken == Hearsay::news) self_.turns->happened(CertificatesChanged{});
  return {};
}

std::optional<std::string> Agreement::objection_to(const WaitingNode& node, const std::optional<Certificate>& shown) {
  std::string why;
  if (shown && shown->node != node.node) {
    why = "its certificate is of another node";
  } else if (shown && authority()) {
    if (const auto taken = take_and_tell(*shown); !taken) why = taken.error();
  }
  if (!asks_for_certificates() || certificate_of(node.node) != nullptr) {
    waiting_.erase(node.node);
    return std::nullopt;
  }
  const Certificate* const held = held_by(node.node);
  if (why.empty() && held == nullptr) why = used_up_for(node.node).value_or("it shows none");
  if (why.empty())
    why = denied_.contains(NodeId{held->warrant.invitation}) ? "its invitation is denied" : "its certificate has ended";
  if (waiting_.size() == max_waiting && !waiting_.contains(node.node)) {
    // The oldest of the host with the most goes, so whoever invents nodes only drives out his own.
    std::map<std::string, std::ptrdiff_t> of_host;
    for (const auto& [known, waits] : waiting_)
      ++of_host[waits.host];
    waiting_.erase(std::ranges::min_element(
        waiting_, {}, [&](const auto& known) { return std::pair(-of_host[known.second.host], known.second.last_at); }));
  }
  WaitingNode& waiting = waiting_[node.node] = node;
  waiting.why = why;
  waiting.last_at = self_.time_of_day();
  return "this cluster asks for a certificate, and " + why + ": see gossamerctl pending and approve on a member";
}

std::optional<std::string> Agreement::objection_to(const InvitationClaim& claim) {
  if (!claim.certificate) return std::nullopt;
  const Certificate& certificate = *claim.certificate;
  if (!authority()) return "this member follows no authority that could have signed the invitation";
  if (certificate.node != node_id(claim.public_key) || certificate.warrant.invitation != claim.invitation)
    return "the claim's certificate is not its own";
  if (denied_.contains(NodeId{certificate.warrant.invitation})) return "the invitation is denied";
  const auto taken = take_and_tell(certificate);
  return taken ? std::nullopt : std::optional(taken.error());
}

std::optional<std::string> Agreement::used_up_for(const NodeId& node) const {
  const auto& excess = spread_.certificates().excess();
  const auto found = excess.find(node);
  return found == excess.end() ? std::nullopt : spread_.certificates().used_up_for(found->second.certificate);
}

std::vector<WaitingNode> Agreement::waiting() const {
  std::vector<WaitingNode> waiting;
  for (const auto& [node, turned_away] : waiting_)
    waiting.push_back(turned_away);
  return waiting;
}

std::expected<void, std::string> Agreement::certify(const Certificate& certificate) {
  self_.turns->read_clock();
  if (!authority())
    return std::unexpected("this cluster has no authority: make one first (gossamerctl authority create)");
  if (denied_.contains(certificate.node))
    return std::unexpected("node " + certificate.node.full() + " is denied: first 'gossamerctl allow' it");
  if (auto taken = take_and_tell(certificate); !taken) return taken;
  const Certificate* const held = spread_.certificates().of(certificate.node);
  if (held == nullptr || held->warrant != certificate.warrant)
    return std::unexpected("another certificate of node " + certificate.node.full() +
                           " holds, which is later: see gossamerctl certificates");
  waiting_.erase(certificate.node);
  const auto& signer = spread_.certificates().entries().at(certificate.node).signer;
  note_taken(self_.identity.node, "node " + certificate.node.full() + " has a certificate, signed by " +
                                      (signer ? spread_.ring().deciders()->name_of(*signer) : "nobody"));
  return {};
}

AdmissionRule Agreement::propose_rule(bool certificates) const {
  self_.turns->read_clock();
  return spread_.ring().propose_rule(certificates, self_.time_of_day());
}

std::expected<void, std::string> Agreement::set_rule(const AdmissionRule& rule) {
  self_.turns->read_clock();
  if (!authority()) return std::unexpected("this cluster has no authority");
  if (auto consent = check_signed(rule); !consent) return consent;
  KeyRing ring = spread_.ring();
  if (ring.is_held(rule)) return std::unexpected("another rule has come meanwhile: try again");
  ring.set_rule(rule);
  return change_ring(std::move(ring));
}

/// Gives the reason to end a link whose other end has no certificate any more, or has other rights than when the link
/// came up. Jobs then see the node go, and perhaps come back with other rights.
std::string Agreement::reason_to_end(const Link& link) const {
  const bool is_certified = certificate_of(link.node) != nullptr;
  // A certificate that is not here yet may still arrive, and one that has ended will not count again.
  const auto used_up = used_up_for(link.node);
  const bool has_one = held_by(link.node) != nullptr || used_up;
  if (asks_since_ && !is_certified && (has_one || self_.now() - *asks_since_ >= certificates_due_us)) {
    return "this cluster asks for a certificate, and " +
           used_up.value_or("node " + link.node.brief() + " has none that counts");
  }
  const bool is_known = is_certified || !asks_for_certificates();
  return is_known && rights_of(link.node) != link.rights ? "the node's rights have changed" : "";
}

void Agreement::enforce_certificates() {
  for (const LinkPtr& link : table_.links()) {
    if (!link->is_up() || !link->broken.empty()) continue;
    const std::string reason = reason_to_end(*link);
    if (reason.empty()) continue;
    sender_.say(*link, Channel::control, Rejected{RejectReason::certificate, reason});
    sender_.set_broken(*link, reason);
  }
}

Deputy Agreement::propose_deputy(const PublicKey& key, std::uint8_t powers, const std::string& name) const {
  self_.turns->read_clock();
  return spread_.ring().propose_deputy(key, powers, name, self_.time_of_day());
}

std::expected<void, std::string> Agreement::set_deputy(const Deputy& deputy) {
  self_.turns->read_clock();
  if (!authority()) return std::unexpected("this cluster has no authority");
  if (!is_plain_text(deputy.name, max_name_bytes)) {
    return std::unexpected("the deputy's name must be " + plain_text_rule(max_name_bytes));
  }
  if (auto consent = check_signed(deputy); !consent) return consent;
  KeyRing ring = spread_.ring();
  if (auto set = ring.set_deputy(deputy); !set) return set;
  return change_ring(std::move(ring));
}

// --- which keys admit ------------------------------------------------------------------------------------------------

std::vector<KeyStatus> Agreement::key_ring() const {
  std::vector<KeyStatus> keys;
  for (const RingKey& key : spread_.ring().keys()) {
    const Fingerprint fingerprint = key.key.fingerprint();
    keys.push_back({fingerprint, key.made_at, keys.empty(), key.signature.has_value(), spread_.holders(fingerprint)});
  }
  return keys;
}

std::expected<RingKey, std::string> Agreement::propose_key() {
  self_.turns->read_clock();
  return spread_.ring().propose(self_.time_of_day());
}

std::expected<void, std::string> Agreement::add_key(const RingKey& key) {
  self_.turns->read_clock();
  if (auto consent = check_signed(key); !consent) return consent;
  KeyRing ring = spread_.ring();
  if (auto added = ring.add(key); !added) return added;
  if (auto changed = change_ring(std::move(ring)); !changed) return changed;
  self_.log->warn("made the cluster key {}: it is told to every member", hex(key.key.fingerprint()));
  return {};
}

std::expected<RetiredKey, std::string> Agreement::propose_retirement(const Fingerprint& fingerprint) {
  self_.turns->read_clock();
  return spread_.ring().propose_retirement(fingerprint, self_.time_of_day());
}

std::expected<void, std::string> Agreement::retire_key(const RetiredKey& key) {
  self_.turns->read_clock();
  if (auto consent = check_signed(key); !consent) return consent;
  KeyRing ring = spread_.ring();
  if (auto retired = ring.retire(key); !retired) return retired;
  if (auto changed = change_ring(std::move(ring)); !changed) return changed;
  self_.log->warn("retired the cluster key {}: every member is told", hex(key.fingerprint));
  return {};
}

// --- who was invited, and joining ------------------------------------------------------------------------------------

std::expected<Invitation, std::string> Agreement::invite(TimeUs validity_us, std::vector<Address> addresses,
                                                         const std::string& advertised, bool needs_warrant) const {
  if (addresses.empty()) {
    if (const auto own = parse_address(advertised, AddressUse::listen)) {
      if (own->is_wildcard()) {
        for (const std::string& host : own_hosts(own->is_ipv6()))
          addresses.push_back({host, own->port});
      } else {
        addresses.push_back(*own);
      }
    }
    for (const auto& [node, record] : table_.nodes()) {
      const auto address = parse_address(record.address, AddressUse::dial);
      if (record.link && address) addresses.push_back(*address);
    }
    order(addresses);
  }
  if (addresses.empty()) {
    return std::unexpected(
        "neither this node nor a neighbour can be dialled: say where members answer, with --address tcp://HOST:PORT");
  }
  return make_invitation(keys_.first(), std::move(addresses), self_.time_of_day() + validity_us, needs_warrant);
}

std::expected<void, std::string> Agreement::join(const Invitation& invitation, Joined ended) {
  if (self_.turns->stopped()) return std::unexpected("this node is stopping");
  if (claim_) return std::unexpected("this node is already joining: wait for the end of that");
  if (std::ranges::any_of(table_.links(), [](const LinkPtr& link) { return link->is_up(); })) {
    return std::unexpected(
        "this node is linked to others, and joining would take it out of their cluster: stop gossamerd, remove its "
        "cluster key file and its peers, and join after the next start");
  }
  std::optional<Certificate> certificate;
  if (const auto& usable = invitation.warrant) {
    // A clock that is ahead is no reason to be turned away, so the date is never after usable_until.
    certificate = usable->certify(self_.identity.node, std::min(self_.time_of_day(), usable->warrant.usable_until));
  }
  claim_ = std::make_shared<ClaimAttempt>(
      self_.loop, self_.zmq, self_.identity, invitation, certificate, self_.options.interface,
      [this, certificate, ended = std::move(ended)](std::expected<InvitationGrant, std::string> grant) {
        self_.turns->run([&] {
          claim_.reset();
          ended(adopt(std::move(grant), certificate));
        });
      });
  claim_->start();
  return {};
}

/// Replaces this node's keys by those of the cluster that invited it. A key that the node made for itself is not told
/// to the cluster.
std::expected<void, std::string> Agreement::adopt(std::expected<InvitationGrant, std::string> grant,
                                                  const std::optional<Certificate>& certificate) {
  if (!grant) return std::unexpected(grant.error());
  if (authority() && grant->ring.authority != authority()) {
    return std::unexpected("the member that answered follows " +
                           (grant->ring.authority ? "the authority " + hex(*grant->ring.authority) : "no authority") +
                           ", and this node " + hex(*authority()) +
                           ": to follow that member, first run 'gossamerctl authority use none' here");
  }
  auto ring = KeyRing::adopt(grant->ring, grant->deputies);
  if (!ring) return std::unexpected(ring.error());
  // What this node has heard of the deputies of the same authority still holds.
  if (authority()) static_cast<void>(ring->merge(spread_.ring().deputy_list(), self_.time_of_day()));
  if (certificate) {
    if (!ring->authority()) return std::unexpected("the member that answered follows no authority");
    if (auto flaw = flaw_of(*certificate, self_.identity.node, *ring->deciders(), self_.time_of_day()))
      return std::unexpected("with the clock and the authority of this cluster " + *flaw);
  }
  if (auto changed = change_ring(std::move(*ring)); !changed) return changed;
  if (certificate) {
    if (auto taken = take_and_tell(*certificate); !taken) return taken;
  }
  self_.log->info("this node was given the cluster keys of those who invited it");
  return {};
}

void Agreement::close() {
  if (claim_) claim_->close();
}

}  // namespace gossamer::peer
