#include "peer/admission/spread.hpp"

#include <algorithm>
#include <utility>

#include "gossip/check.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

// The audit has one record for each of these kinds and neighbour.
constexpr const char* denials_kind = "denials";
constexpr const char* ring_kind = "keys and rules";
constexpr const char* deputies_kind = "deputies";
constexpr const char* certificates_kind = "certificates";
constexpr const char* ignored_words = "they are not looked at for a minute after too many forged ones";
constexpr const char* too_many_words = "more changes in a short time than are taken without an authority";

}  // namespace

std::optional<ControlMessage> Spread::next_for(const NodeId& node, TimeUs now) {
  const auto link = links_.find(node);
  if (link == links_.end()) return std::nullopt;
  Told& neighbour = link->second;
  Cursor& told = neighbour.told;
  const TimeUs since = now - neighbour.told_at;
  if (since >= retell_us || (neighbour.wants_all && since >= retell_pause_us)) {
    neighbour.wants_all = false;
    told = {};
    neighbour.told_at = now;
  }
  Cursor& next = neighbour.next = told;
  // Deputies go first, since they may have signed the rest. Older nodes ignore them.
  if (std::exchange(next.deputies_version, deputies_version_) != deputies_version_) {
    DeputyList deputies = ring_.deputy_list();
    if (!deputies.records.empty()) return deputies;
  }
  // Denials go next: a node that was denied before the key was changed must not be told the new one.
  DenialList list;
  if (told.denial_change != denials_.last_change())
    list.records = denials_.since(next.denial_change, max_denials_in_message);
  if (!list.records.empty()) return list;
  // The ring goes before certificates: it names the authority that has signed them.
  if (told.ring_version != ring_version_) {
    next.ring_version = ring_version_;
    return ring_.state();
  }
  if (!ring_.deciders() || told.certificate_change == certificates_.last_change()) return std::nullopt;
  CertificateList certificates{certificates_.since(next.certificate_change, max_certificates_in_message)};
  if (!certificates.records.empty()) return certificates;
  told.certificate_change = certificates_.last_change();
  return std::nullopt;
}

void Spread::said(const NodeId& node) {
  const auto link = links_.find(node);
  if (link != links_.end()) link->second.told = link->second.next;
}

Hearsay Spread::heard(const NodeId& from, DenialList& list, TimeUs time_of_day, TimeUs now) {
  GOSSAMER_CHECK(list.records.size() <= max_denials_in_message);
  refusal_.clear();
  const auto link = links_.find(from);
  if (link == links_.end()) return Hearsay::known;
  const auto& deciders = ring_.deciders();
  if (is_banned(link->second, now)) {
    list.records.clear();
    note_refusal(denials_kind, ignored_words);
    return Hearsay::refused;
  }
  std::vector<Denial> news;
  for (Denial& denial : list.records) {
    if (is_too_far_ahead(denial.decided_at, time_of_day)) note_shared(denial.statement());
    if (denials_.knows(denial, deciders.has_value())) continue;
    if (deciders && !denial.signature) {
      note_refusal(denials_kind, words_of(Refusal::not_signed, words_of(denial), denial.decided_at));
      continue;
    }
    if (!deciders && !denial_throttle_.take(now)) {
      note_refusal(denials_kind, too_many_words);
      break;
    }
    const auto merged = denials_.merge(denial, time_of_day, links_.contains(denial.node), deciders);
    if (merged) {
      if (*merged == Hearsay::news) news.push_back(std::move(denial));
      continue;
    }
    note_refusal(denials_kind, words_of(merged.error(), words_of(denial), denial.decided_at));
    if (deciders && merged.error() == Refusal::not_signed) {
      note_forgery(link->second, now);
      break;  // the rest is not checked, because checking signatures takes time
    }
    // A record that a deputy has signed without the right is no forgery, since the neighbour may not know yet that the
    // right is gone. Checking signatures takes time, so such records are counted.
    if (deciders && !link->second.looks.take(now)) break;
  }
  list.records = std::move(news);
  if (!list.records.empty()) return Hearsay::news;
  return refusal_.empty() ? Hearsay::known : Hearsay::refused;
}

void Spread::note_shared(const Statement& decision) {
  const auto held = ahead_.find(decision);
  if (held != ahead_.end()) held->second.is_shared = true;
}

std::vector<std::string> Spread::forget_ahead(TimeUs time_of_day, TimeUs now) {
  struct Found {
    std::string what;
    std::optional<NodeId> node;  ///< whom a denial is about; nothing: it is about a key
  };
  std::map<Statement, Found> found;
  const auto look = [&](const auto& decision, TimeUs dated_at, std::optional<NodeId> node = {}) {
    if (is_too_far_ahead(dated_at, time_of_day))
      found[decision.statement()] = {words_of(decision) + ", dated " + date_text(dated_at), node};
  };
  for (const auto& [node, entry] : denials_.entries())
    look(entry.denial, entry.denial.decided_at, node);
  for (const RingKey& key : ring_.keys())
    look(key, key.made_at);
  for (const RetiredKey& key : ring_.retired())
    look(key, key.retired_at);
  std::erase_if(ahead_, [&](const auto& item) { return !found.contains(item.first); });
  if (found.empty()) return {};

  const auto has_told_all = [&](const auto& link) {
    return link.second.has_told_ring && now - link.second.up_at >= forget_ahead_after_us;
  };
  const bool is_heard = std::ranges::any_of(links_, has_told_all);
  std::vector<std::string> forgotten;
  KeyRing ring = ring_;
  bool ring_changed = false;
  for (const auto& [statement, decision] : found) {
    const Ahead& ahead = ahead_.try_emplace(statement, now, false).first->second;
    if (ahead.is_shared || !is_heard || now - ahead.since < forget_ahead_after_us) continue;
    if (decision.node) {
      denials_.forget(*decision.node);
    } else if (ring.forget(statement)) {
      ring_changed = true;
    } else {
      continue;  // it is the only key
    }
    forgotten.push_back(decision.what);
  }
  if (ring_changed) set_ring(std::move(ring), now);
  return forgotten;
}

/// Keeps the first refusal of a message: one is enough for people to look.
void Spread::note_refusal(const char* kind, const std::string& what) {
  if (refusal_.empty()) refusal_ = std::string(kind) + ": " + what;
}

Hearsay Spread::heard(const NodeId& from, CertificateList& list, TimeUs time_of_day, TimeUs now) {
  refusal_.clear();
  const auto link = links_.find(from);
  const auto& deciders = ring_.deciders();
  if (link == links_.end() || !deciders || now < link->second.banned_until) {
    list.records.clear();
    return Hearsay::known;
  }
  std::vector<Certificate> news;
  for (const Certificate& certificate : list.records) {
    if (certificates_.knows(certificate, Certificates::Source::hearsay)) continue;
    if (misfit_of(certificate, certificate.node, time_of_day)) continue;
    if (!link->second.looks.take(now)) break;
    const auto signer = signer_of(certificate, *deciders);
    if (!signer) {
      note_refusal(certificates_kind, "the cluster's authority does not stand behind them");
      note_forgery(link->second, now);
      break;  // the rest is not checked, because checking signatures takes time
    }
    if (!deciders->may_sign(*signer, Warrant::power)) continue;
    const bool was_known = certificates_.excess().contains(certificate.node);
    const Hearsay merged = merge(certificate, *signer, Certificates::Source::hearsay, now, time_of_day);
    if (merged == Hearsay::news) news.push_back(certificate);
    if (merged == Hearsay::refused && !was_known)
      note_refusal(
          certificates_kind,
          "that of node " + certificate.node.full() + ", but " + *certificates_.used_up_for(certificate) +
              ". It is not let in here. Approve the nodes that are to stay (gossamerctl approve), and deny the "
              "others");
  }
  list.records = std::move(news);
  if (!list.records.empty()) return Hearsay::news;
  return refusal_.empty() ? Hearsay::known : Hearsay::refused;
}

std::expected<Hearsay, std::string> Spread::take(const Certificate& certificate, TimeUs time_of_day, TimeUs now) {
  if (!ring_.deciders()) return Hearsay::known;  // without an authority nobody can check it
  if (auto misfit = misfit_of(certificate, certificate.node, time_of_day)) return std::unexpected(std::move(*misfit));
  const Certificate* const known = certificates_.of(certificate.node);
  if (known != nullptr && *known == certificate) return Hearsay::known;
  const auto signer = signer_of(certificate, *ring_.deciders());
  if (!signer || !ring_.deciders()->may_sign(*signer, Warrant::power))
    return std::unexpected("nobody who decides in the cluster stands behind the certificate");
  const Hearsay merged = merge(certificate, *signer, Certificates::Source::itself, now, time_of_day);
  if (merged != Hearsay::refused) return merged;
  return std::unexpected(*certificates_.used_up_for(certificate));
}

Hearsay Spread::merge(const Certificate& genuine, const PublicKey& signer, Certificates::Source source, TimeUs now,
                      TimeUs time_of_day) {
  const auto is_to_be_kept = [this](const NodeId& node) { return links_.contains(node); };
  return certificates_.merge(genuine, source, now, time_of_day, is_to_be_kept, signer);
}

void Spread::note_forgery(Told& by, TimeUs now) {
  if (!by.forgeries.take(now)) by.banned_until = now + forgery_ban_us;
}

Hearsay Spread::heard(const NodeId& from, const RingState& state, TimeUs time_of_day, TimeUs now) {
  refusal_.clear();
  const auto link = links_.find(from);
  if (link == links_.end()) return Hearsay::known;
  link->second.holds.clear();
  for (const RingKey& key : state.keys) {
    link->second.holds.push_back(key.key.fingerprint());
    if (is_too_far_ahead(key.made_at, time_of_day)) note_shared(key.statement());
  }
  for (const RetiredKey& key : state.retired) {
    if (is_too_far_ahead(key.retired_at, time_of_day)) note_shared(key.statement());
  }
  const bool is_other = std::exchange(link->second.authority, state.authority) != state.authority;
  if (std::exchange(link->second.has_told_ring, true) && is_other) link->second.wants_all = true;
  if (ring_.knows(state)) return Hearsay::known;
  return merge_into_ring(link->second, ring_kind, state, time_of_day, now);
}

Hearsay Spread::heard(const NodeId& from, const DeputyList& list, TimeUs time_of_day, TimeUs now) {
  refusal_.clear();
  const auto link = links_.find(from);
  return link == links_.end() ? Hearsay::known : merge_into_ring(link->second, deputies_kind, list, time_of_day, now);
}

Hearsay Spread::shown(const DeputyList& list, TimeUs time_of_day, TimeUs now) {
  if (!ring_.deciders()) return Hearsay::known;
  KeyRing merged = ring_;
  if (!merged.merge(list, time_of_day).changed) return Hearsay::known;
  set_ring(std::move(merged), now);
  return Hearsay::news;
}

template <class Heard>
Hearsay Spread::merge_into_ring(Told& from, const char* kind, const Heard& heard, TimeUs time_of_day, TimeUs now) {
  if (is_banned(from, now)) {
    note_refusal(kind, ignored_words);
    return Hearsay::refused;
  }
  KeyRing merged = ring_;
  const KeyRing::Merge merge = merged.merge(heard, time_of_day);
  if (merge.refused) note_refusal(kind, *merge.refused);
  if (merge.forged) note_forgery(from, now);
  if (!merge.changed) return merge.refused ? Hearsay::refused : Hearsay::known;
  if (!ring_.deciders() && !ring_throttle_.take(now)) {
    note_refusal(kind, too_many_words);
    return Hearsay::refused;
  }
  set_ring(std::move(merged), now);
  return Hearsay::news;
}

void Spread::settle(const KeyRing& ring, bool new_authority) {
  if (!ring.deciders()) return;
  denials_.settle(*ring.deciders(), new_authority);
  certificates_.settle(*ring.deciders(), new_authority);
}

void Spread::set_ring(KeyRing ring, TimeUs now) {
  if (ring.deciders() != ring_.deciders()) {
    settle(ring, ring.authority() != ring_.authority());
    ++deputies_version_;
    // Everything is told again: a neighbour that did not know the deputies has refused what they signed.
    for (auto& [node, link] : links_)
      link.told.denial_change = link.told.certificate_change = 0;
  }
  ring_ = std::move(ring);
  ++ring_version_;
  ring_changed_at_ = now;
}

std::optional<Fingerprint> Spread::promotion(TimeUs now) const {
  const auto successor = ring_.successor();
  if (!successor) return std::nullopt;
  const bool waited = now - ring_changed_at_ >= promote_after_us;
  const bool newcomers =
      std::ranges::any_of(newcomers_, [now](const auto& entry) { return now - entry.second < newcomer_patience_us; });
  return waited || (holders(*successor) == links_.size() && !newcomers) ? successor : std::nullopt;
}

void Spread::given(const NodeId& node, TimeUs now) {
  std::erase_if(newcomers_, [now](const auto& entry) { return now - entry.second >= newcomer_patience_us; });
  if (newcomers_.size() < max_newcomers && !links_.contains(node)) newcomers_[node] = now;
}

std::size_t Spread::key_slot(TimeUs since_start) const {
  const std::size_t others = ring_.keys().size() - 1;
  const TimeUs period = first_key_slot_us + static_cast<TimeUs>(others) * other_key_slot_us;
  const TimeUs position = since_start % period;
  if (position < first_key_slot_us) return 0;
  return 1 + static_cast<std::size_t>((position - first_key_slot_us) / other_key_slot_us);
}

std::size_t Spread::holders(const Fingerprint& fingerprint) const {
  return static_cast<std::size_t>(std::ranges::count_if(links_, [&](const auto& link) {
    return std::ranges::find(link.second.holds, fingerprint) != link.second.holds.end();
  }));
}

}  // namespace gossamer::peer
