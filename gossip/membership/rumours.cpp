#include "gossip/membership/rumours.hpp"

#include <algorithm>

namespace gossamer::gossip {

/// The index of the item that makes room.
std::size_t RumourQueue::last() const {
  std::size_t found = 0;
  for (std::size_t i = 1; i < items_.size(); ++i) {
    const Item& item = items_[i];
    if (before({items_[found].sent, items_[found].order, 0}, {item.sent, item.order, 0})) found = i;
  }
  return found;
}

void RumourQueue::push(Rumour rumour) {
  // Accusations by different nodes confirm each other, so one must not replace another.
  std::erase_if(items_, [&](const Item& item) {
    const bool both_accuse = item.rumour.claim == Claim::suspected && rumour.claim == Claim::suspected;
    return item.rumour.subject.node == rumour.subject.node &&
           (!both_accuse || item.rumour.accuser == rumour.accuser ||
            item.rumour.subject.incarnation != rumour.subject.incarnation);
  });
  if (items_.size() >= max_queued_rumours) {
    items_[last()] = {std::move(rumour), 0, order_++};
  } else {
    items_.push_back({std::move(rumour), 0, order_++});
  }
}

void RumourQueue::erase(const NodeId& subject) {
  std::erase_if(items_, [&](const Item& item) { return item.rumour.subject.node == subject; });
}

void RumourQueue::take(std::vector<Rumour>& rumours, std::size_t bytes, unsigned limit, const NodeId& receiver) {
  if (items_.empty() || rumours.size() >= max_message_rumours) return;
  const std::size_t wanted = std::min(items_.size(), max_message_rumours - rumours.size());
  ranks_.clear();
  for (std::size_t i = 0; i < items_.size(); ++i)
    ranks_.push_back({items_[i].sent, items_[i].order, i});
  std::partial_sort(ranks_.begin(), ranks_.begin() + static_cast<std::ptrdiff_t>(wanted), ranks_.end(), before);
  bool spent = false;
  for (std::size_t i = 0; i < wanted; ++i) {
    Item& item = items_[ranks_[i].index];
    const std::size_t size = wire_bytes(item.rumour);
    if (item.rumour.subject.node == receiver || size > bytes) continue;
    bytes -= size;
    rumours.push_back(item.rumour);
    spent |= ++item.sent >= limit;
  }
  if (spent) std::erase_if(items_, [&](const Item& item) { return item.sent >= limit; });
}

const HeardClaims::Heard* HeardClaims::find(const NodeId& node) const {
  const auto found = std::ranges::lower_bound(items_, node, {}, &Heard::node);
  return found != items_.end() && found->node == node ? &*found : nullptr;
}

bool HeardClaims::gone(const NodeId& node, std::uint64_t incarnation) const {
  const Heard* heard = find(node);
  return heard != nullptr && heard->claim != Claim::alive && incarnation <= heard->incarnation;
}

bool HeardClaims::put(const NodeId& node, std::uint64_t incarnation, Claim claim, TimeUs now_us) {
  auto place = std::ranges::lower_bound(items_, node, {}, &Heard::node);
  if (place != items_.end() && place->node == node) {
    *place = {node, incarnation, now_us, claim};
    return true;
  }
  if (items_.size() >= max_heard) {
    const auto oldest = std::ranges::min_element(items_, {}, &Heard::at_us);
    if (now_us - oldest->at_us < min_heard_us) return false;
    items_.erase(oldest);
    place = std::ranges::lower_bound(items_, node, {}, &Heard::node);
  }
  items_.insert(place, {node, incarnation, now_us, claim});
  return true;
}

void HeardClaims::make_room() {
  if (items_.size() >= max_heard) items_.erase(std::ranges::min_element(items_, {}, &Heard::at_us));
}

void HeardClaims::erase(const NodeId& node) {
  const auto found = std::ranges::lower_bound(items_, node, {}, &Heard::node);
  if (found != items_.end() && found->node == node) items_.erase(found);
}

void HeardClaims::expire(TimeUs now_us) {
  std::erase_if(items_, [&](const Heard& heard) { return now_us - heard.at_us > max_heard_us; });
}

}  // namespace gossamer::gossip
