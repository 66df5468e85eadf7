#include "peer/admission/spread.hpp"

#include <algorithm>

#include "gossip/check.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {

std::optional<ControlMessage> Spread::next_for(const NodeId& node, TimeUs now) {
  const auto link = links_.find(node);
  if (link == links_.end()) return std::nullopt;
  Told& told = link->second;
  if (now - told.told_at >= retell_us) {
    told.denial_change = told.ring_version = 0;
    told.told_at = now;
  }
  told.next_denial_change = told.denial_change;
  told.next_ring_version = told.ring_version;
  // Denials go first: a node that was denied before the key was changed must not be told the new one.
  DenialList list;
  if (told.denial_change != denials_.last_change())
    list.records = denials_.since(told.next_denial_change, max_denials_in_message);
  if (!list.records.empty()) return list;
  if (told.ring_version == ring_version_) return std::nullopt;
  told.next_ring_version = ring_version_;
  return ring_.state();
}

void Spread::said(const NodeId& node) {
  const auto link = links_.find(node);
  if (link == links_.end()) return;
  link->second.denial_change = link->second.next_denial_change;
  link->second.ring_version = link->second.next_ring_version;
}

Hearsay Spread::heard(const NodeId& from, DenialList& list, TimeUs time_of_day, TimeUs now) {
  GOSSAMER_CHECK(list.records.size() <= max_denials_in_message);
  if (!links_.contains(from)) return Hearsay::known;
  bool refused = false;
  std::vector<Denial> news;
  for (Denial& denial : list.records) {
    const auto known = denials_.entries().find(denial.node);
    const bool same = known != denials_.entries().end() && known->second.denial == denial;
    if (same) continue;
    if (!denial_throttle_.take(now)) {
      refused = true;
      break;
    }
    const Hearsay merged = denials_.merge(denial, time_of_day, links_.contains(denial.node));
    if (merged == Hearsay::news) news.push_back(std::move(denial));
    if (merged == Hearsay::refused) refused = true;
  }
  list.records = std::move(news);
  if (!list.records.empty()) return Hearsay::news;
  return refused ? Hearsay::refused : Hearsay::known;
}

Hearsay Spread::heard(const NodeId& from, const RingState& state, TimeUs time_of_day, TimeUs now) {
  const auto link = links_.find(from);
  if (link == links_.end()) return Hearsay::known;
  link->second.holds.clear();
  for (const RingKey& key : state.keys)
    link->second.holds.push_back(key.key.fingerprint());
  KeyRing merged = ring_;
  const KeyRing::Merge merge = merged.merge(state, time_of_day);
  if (!merge.changed) return merge.refused ? Hearsay::refused : Hearsay::known;
  if (!ring_throttle_.take(now)) return Hearsay::refused;
  set_ring(std::move(merged), now);
  return Hearsay::news;
}

void Spread::set_ring(KeyRing ring, TimeUs now) {
  ring_ = std::move(ring);
  ++ring_version_;
  ring_changed_at_ = now;
}

std::optional<Fingerprint> Spread::promotion(TimeUs now) const {
  const auto successor = ring_.successor();
  if (!successor) return std::nullopt;
  const bool waited = now - ring_changed_at_ >= promote_after_us;
  return waited || holders(*successor) == links_.size() ? successor : std::nullopt;
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
