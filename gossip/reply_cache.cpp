#include "gossip/reply_cache.hpp"

#include <algorithm>
#include <limits>

#include "gossip/check.hpp"

namespace gossamer::gossip {

ReplyCache::Standing ReplyCache::standing(const ExchangeId& id) const {
  const auto found = initiators_.find(id.initiator);
  if (found == initiators_.end()) return Standing::fresh;
  const Initiator& initiator = found->second;
  const auto entry = initiator.entries.find(id.counter);
  if (entry == initiator.entries.end()) {
    if (id.counter <= initiator.floor) return Standing::expired;
    return initiator.unacknowledged >= max_unacknowledged ? Standing::full : Standing::fresh;
  }
  switch (entry->second.stage) {
    case Stage::working:
      return Standing::working;
    case Stage::answered:
      return Standing::answered;
    case Stage::acknowledged:
      return Standing::acknowledged;
    case Stage::declined:
      return Standing::declined;
  }
  return Standing::expired;
}

const ExchangeReply& ReplyCache::reply(const ExchangeId& id) const {
  return initiators_.at(id.initiator).entries.at(id.counter).reply;
}

ReplyCache::Initiator& ReplyCache::initiator_of(const NodeId& id) {
  if (initiators_.size() >= max_initiators && !initiators_.contains(id)) {
    auto oldest = initiators_.end();
    for (auto candidate = initiators_.begin(); candidate != initiators_.end(); ++candidate) {
      if (!candidate->second.entries.empty()) continue;
      if (oldest == initiators_.end() || candidate->second.floor < oldest->second.floor) oldest = candidate;
    }
    if (oldest != initiators_.end()) initiators_.erase(oldest);
  }
  return initiators_[id];
}

void ReplyCache::make_room(Initiator& initiator) {
  if (initiator.entries.size() < max_remembered) return;
  // The oldest that is done with; there is one, since the others are bounded far below.
  const auto oldest = std::find_if(initiator.entries.begin(), initiator.entries.end(), [](const auto& item) {
    return item.second.stage == Stage::acknowledged || item.second.stage == Stage::declined;
  });
  GOSSAMER_CHECK(oldest != initiator.entries.end());
  initiator.floor = std::max(initiator.floor, oldest->first);
  initiator.entries.erase(oldest);
}

void ReplyCache::begin(const ExchangeId& id, TimeUs now_us) {
  Initiator& initiator = initiator_of(id.initiator);
  make_room(initiator);
  const bool added = initiator.entries.emplace(id.counter, Entry{.begun_us = now_us}).second;
  GOSSAMER_CHECK(added);
  ++initiator.unacknowledged;
}

void ReplyCache::decline(const ExchangeId& id, TimeUs now_us) {
  Initiator& initiator = initiator_of(id.initiator);
  const auto entry = initiator.entries.find(id.counter);
  if (entry == initiator.entries.end()) {
    make_room(initiator);
    initiator.entries.emplace(id.counter, Entry{.stage = Stage::declined, .begun_us = now_us});
  } else if (entry->second.stage == Stage::working) {
    entry->second.stage = Stage::declined;
    --initiator.unacknowledged;
  }
}

bool ReplyCache::store(const ExchangeId& id, ExchangeReply reply, TimeUs now_us) {
  const auto initiator = initiators_.find(id.initiator);
  if (initiator == initiators_.end()) return false;
  const auto entry = initiator->second.entries.find(id.counter);
  if (entry == initiator->second.entries.end()) return false;
  entry->second.stage = Stage::answered;
  entry->second.given_us = now_us;
  entry->second.reply = std::move(reply);
  return true;
}

bool ReplyCache::acknowledge(const ExchangeId& id) {
  const auto initiator = initiators_.find(id.initiator);
  if (initiator == initiators_.end()) return false;
  const auto entry = initiator->second.entries.find(id.counter);
  if (entry == initiator->second.entries.end() || entry->second.stage != Stage::answered) return false;
  entry->second.stage = Stage::acknowledged;
  entry->second.reply = {};
  --initiator->second.unacknowledged;
  return true;
}

std::vector<NodeId> ReplyCache::expire(TimeUs now_us) {
  std::vector<NodeId> lost;
  for (auto& [id, initiator] : initiators_) {
    std::erase_if(initiator.entries, [&](auto& item) {
      auto& [counter, entry] = item;
      if (entry.stage == Stage::working || now_us - entry.begun_us < lifetime_us_) return false;
      if (entry.stage == Stage::answered) {
        lost.push_back(id);
        --initiator.unacknowledged;
      }
      initiator.floor = std::max(initiator.floor, counter);
      return true;
    });
  }
  return lost;
}

std::size_t ReplyCache::drop(const NodeId& id) {
  return drop(id, std::numeric_limits<std::uint64_t>::max());
}

std::size_t ReplyCache::drop(const NodeId& id, std::uint64_t before) {
  const auto found = initiators_.find(id);
  if (found == initiators_.end()) return 0;
  Initiator& initiator = found->second;
  std::size_t lost = 0;
  while (!initiator.entries.empty() && initiator.entries.begin()->first < before) {
    const auto& [counter, entry] = *initiator.entries.begin();
    if (entry.stage == Stage::answered) ++lost;
    if (entry.stage == Stage::answered || entry.stage == Stage::working) --initiator.unacknowledged;
    initiator.floor = std::max(initiator.floor, counter);  // stays: the node may come back and repeat itself
    initiator.entries.erase(initiator.entries.begin());
  }
  return lost;
}

void ReplyCache::mark_unsent(const NodeId& id, const ExchangeReply& reply) {
  const auto initiator = initiators_.find(id);
  if (initiator == initiators_.end()) return;
  const auto entry = initiator->second.entries.find(reply.counter);
  if (entry == initiator->second.entries.end()) return;
  if (entry->second.stage == Stage::declined) entry->second.reply = reply;
  entry->second.unsent = any_unsent_ = true;
}

void ReplyCache::mark_unsent(const NodeId& id) {
  const auto initiator = initiators_.find(id);
  if (initiator == initiators_.end()) return;
  for (auto& [counter, entry] : initiator->second.entries) {
    if (entry.stage == Stage::answered) entry.unsent = any_unsent_ = true;
  }
}

std::size_t ReplyCache::mark_overdue(const NodeId& id, TimeUs now_us, TimeUs patience_us) {
  const auto initiator = initiators_.find(id);
  if (initiator == initiators_.end() || initiator->second.unacknowledged == 0) return 0;
  std::size_t count = 0;
  for (auto& [counter, entry] : initiator->second.entries) {
    if (entry.stage != Stage::answered || now_us - entry.given_us < patience_us) continue;
    entry.given_us = now_us;
    entry.unsent = any_unsent_ = true;
    ++count;
  }
  return count;
}

std::vector<std::pair<NodeId, ExchangeReply>> ReplyCache::take_unsent() {
  std::vector<std::pair<NodeId, ExchangeReply>> unsent;
  if (!any_unsent_) return unsent;
  any_unsent_ = false;
  for (auto& [id, initiator] : initiators_) {
    for (auto& [counter, entry] : initiator.entries) {
      if (!entry.unsent) continue;
      entry.unsent = false;
      if (entry.stage == Stage::answered || entry.stage == Stage::declined) unsent.emplace_back(id, entry.reply);
    }
  }
  return unsent;
}

void ReplyCache::add_seen(Seen& seen) const {
  for (const auto& [id, initiator] : initiators_) {
    std::uint64_t last = initiator.floor;
    if (!initiator.entries.empty()) last = std::max(last, initiator.entries.rbegin()->first);
    std::uint64_t& known = seen[id];
    known = std::max(known, last);
  }
  bound(seen);
}

void ReplyCache::add_seen(const ExchangeId& id, Seen& seen) {
  std::uint64_t& known = seen[id.initiator];
  known = std::max(known, id.counter);
  bound(seen);
}

void ReplyCache::bound(Seen& seen) {
  // Counters begin with the time of day: the smallest are of those that have been away for longest.
  const auto by_counter = [](const auto& a, const auto& b) { return a.second < b.second; };
  while (seen.size() > max_initiators)
    seen.erase(std::min_element(seen.begin(), seen.end(), by_counter));
}

void ReplyCache::begin_after(const Seen& seen) {
  for (const auto& [id, last] : seen) {
    Initiator& initiator = initiator_of(id);
    initiator.floor = std::max(initiator.floor, last);
  }
}

std::size_t ReplyCache::unacknowledged() const {
  std::size_t count = 0;
  for (const auto& [id, initiator] : initiators_)
    count += initiator.unacknowledged;
  return count;
}

}  // namespace gossamer::gossip
