#include "gossip/replica/reply_cache.hpp"

#include <algorithm>
#include <ranges>

#include "gossip/check.hpp"

namespace gossamer::gossip {

ReplyCache::Standing ReplyCache::standing(const ExchangeId& id) const {
  const auto found = initiators_.find(id.initiator);
  if (found == initiators_.end()) return free_places_.empty() ? Standing::full : Standing::fresh;
  const Initiator& initiator = found->second;
  const auto entry = initiator.entries.find(id.counter);
  if (entry == initiator.entries.end()) {
    if (id.counter <= initiator.floor) return Standing::expired;
    return initiator.unacknowledged >= most_unacknowledged_ || free_places_.empty() ? Standing::full : Standing::fresh;
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

const AnsweredHalf& ReplyCache::half(const ExchangeId& id) const {
  return initiators_.at(id.initiator).entries.at(id.counter).half;
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
  // The oldest finished entry is removed. Such an entry exists, since far fewer than max_remembered are unfinished.
  const auto oldest = std::find_if(initiator.entries.begin(), initiator.entries.end(), [](const auto& item) {
    return item.second.stage == Stage::acknowledged || item.second.stage == Stage::declined;
  });
  GOSSAMER_CHECK(oldest != initiator.entries.end());
  initiator.floor = std::max(initiator.floor, oldest->first);
  initiator.entries.erase(oldest);
}

void ReplyCache::set_capacity(std::uint32_t capacity) {
  const std::size_t half = std::max<std::size_t>(capacity / 2, 1);
  most_unacknowledged_ = std::min(max_unacknowledged, half);
  most_orphans_ = std::min(max_orphans, half);
  capacity_ = capacity;
  free_places_.clear();
  for (std::uint32_t place = capacity; place > 0; --place)
    free_places_.push_back(place - 1);
}

std::uint32_t ReplyCache::begin(const ExchangeId& id, TimeUs now_us) {
  GOSSAMER_CHECK(!free_places_.empty());
  Initiator& initiator = initiator_of(id.initiator);
  make_room(initiator);
  const std::uint32_t place = free_places_.back();  // the place that was freed last: its memory is warm
  free_places_.pop_back();
  const bool added = initiator.entries.emplace(id.counter, Entry{.begun_us = now_us, .place = place}).second;
  GOSSAMER_CHECK(added);
  ++initiator.unacknowledged;
  taken_[place] = id;
  return place;
}

void ReplyCache::leave_place(std::uint32_t place) {
  free_places_.push_back(place);
  left_.push_back(place);
}

void ReplyCache::orphan(Initiator& initiator, Entry& entry) {
  --initiator.unacknowledged;
  entry.orphaned = true;
  if (entry.stage == Stage::answered) ++orphans_;
}

void ReplyCache::close(Initiator& initiator, const Entry& entry) {
  if (entry.open()) --initiator.unacknowledged;
  if (entry.orphan()) --orphans_;
  if (entry.takes_place()) taken_.erase(entry.place);
}

void ReplyCache::decline(const ExchangeId& id, TimeUs now_us) {
  Initiator& initiator = initiator_of(id.initiator);
  const auto entry = initiator.entries.find(id.counter);
  if (entry == initiator.entries.end()) {
    make_room(initiator);
    initiator.entries.emplace(id.counter, Entry{.stage = Stage::declined, .begun_us = now_us});
  } else if (entry->second.stage == Stage::working) {
    close(initiator, entry->second);
    entry->second.stage = Stage::declined;
  }
}

bool ReplyCache::store(const ExchangeId& id, ExchangeReply reply, AnsweredHalf half, TimeUs now_us) {
  Entry* const entry = find(id);
  if (entry == nullptr) return false;
  entry->stage = Stage::answered;
  if (entry->orphaned) ++orphans_;
  entry->given_us = now_us;
  entry->reply = std::move(reply);
  entry->half = std::move(half);
  return true;
}

void ReplyCache::restore(const ExchangeId& id, std::uint32_t place, ExchangeReply reply, AnsweredHalf half,
                         TimeUs now_us) {
  if (std::erase(free_places_, place) == 0) return;
  const bool added = initiator_of(id.initiator)
                         .entries
                         .emplace(id.counter, Entry{.stage = Stage::answered,
                                                    .begun_us = now_us,
                                                    .given_us = now_us,
                                                    .place = place,
                                                    .orphaned = true,
                                                    .reply = std::move(reply),
                                                    .half = std::move(half)})
                         .second;
  if (added) {
    ++orphans_;
    taken_[place] = id;
  } else {
    leave_place(place);
  }
}

const ReplyCache::Entry* ReplyCache::find(const ExchangeId& id) const {
  const auto initiator = initiators_.find(id.initiator);
  if (initiator == initiators_.end()) return nullptr;
  const auto entry = initiator->second.entries.find(id.counter);
  return entry == initiator->second.entries.end() ? nullptr : &entry->second;
}

ReplyCache::Entry* ReplyCache::find(const ExchangeId& id) {
  return const_cast<Entry*>(std::as_const(*this).find(id));
}

template <class Visit>
void ReplyCache::visit_taken(const NodeId& initiator, Visit visit) {
  for (const ExchangeId& id : std::views::values(taken_)) {
    if (id.initiator == initiator) visit(id.counter, *find(id));
  }
}

ReplyCache::Entry* ReplyCache::answered(const ExchangeId& id) {
  Entry* const entry = find(id);
  return entry != nullptr && entry->stage == Stage::answered ? entry : nullptr;
}

void ReplyCache::settle(Initiator& initiator, Entry& entry) {
  close(initiator, entry);
  entry.stage = Stage::acknowledged;
  entry.reply = {};
  entry.half = {};
}

bool ReplyCache::acknowledge(const ExchangeId& id) {
  Entry* const entry = answered(id);
  if (entry == nullptr) return false;
  leave_place(entry->place);
  settle(initiators_.at(id.initiator), *entry);
  return true;
}

std::optional<UndoTask> ReplyCache::take_back(const ExchangeId& id) {
  Entry* const entry = answered(id);
  if (entry == nullptr) return std::nullopt;
  if (entry->half.exponents.empty()) {  // the two ends agreed: there was nothing to commit
    (void)acknowledge(id);
    return std::nullopt;
  }
  UndoTask undo{.place = entry->place, .reply = std::move(entry->reply), .half = std::move(entry->half)};
  settle(initiators_.at(id.initiator), *entry);
  return undo;
}

std::vector<ExchangeId> ReplyCache::expire(TimeUs now_us) {
  std::vector<ExchangeId> lost;
  std::vector<std::pair<TimeUs, ExchangeId>> kept;
  for (auto& [id, initiator] : initiators_) {
    for (auto& [counter, entry] : initiator.entries) {
      if (entry.stage == Stage::answered && entry.open() && now_us - entry.begun_us >= lifetime_us_)
        orphan(initiator, entry);
    }
    std::erase_if(initiator.entries, [&](const auto& item) {
      const auto& [counter, entry] = item;
      if (entry.stage == Stage::working || now_us - entry.begun_us < lifetime_us_) return false;
      if (entry.orphan() && now_us - entry.begun_us < orphan_life_us) {
        kept.emplace_back(entry.begun_us, ExchangeId{id, counter});
        return false;
      }
      if (entry.orphan()) {
        lost.push_back({id, counter});
        leave_place(entry.place);
        close(initiator, entry);
      }
      initiator.floor = std::max(initiator.floor, counter);
      return true;
    });
  }
  if (kept.size() <= most_orphans_) return lost;
  const auto end = kept.end() - static_cast<std::ptrdiff_t>(most_orphans_);
  std::nth_element(kept.begin(), end, kept.end());
  for (auto oldest = kept.begin(); oldest != end; ++oldest) {
    (void)acknowledge(oldest->second);
    lost.push_back(oldest->second);
  }
  return lost;
}

void ReplyCache::orphan(const NodeId& id, std::uint64_t before) {
  visit_taken(id, [&](std::uint64_t counter, Entry& entry) {
    if (counter < before && entry.open()) orphan(initiators_.at(id), entry);
  });
}

std::vector<ExchangeId> ReplyCache::drop(const NodeId& id, std::uint64_t before) {
  std::vector<ExchangeId> lost;
  const auto found = initiators_.find(id);
  if (found == initiators_.end()) return lost;
  Initiator& initiator = found->second;
  while (!initiator.entries.empty() && initiator.entries.begin()->first < before) {
    const auto& [counter, entry] = *initiator.entries.begin();
    if (entry.stage == Stage::answered) lost.push_back({id, counter});
    if (entry.stage == Stage::answered) leave_place(entry.place);  // in other stages a worker may write to the place
    close(initiator, entry);
    initiator.floor = std::max(initiator.floor, counter);  // kept: the node may come back and repeat a request
    initiator.entries.erase(initiator.entries.begin());
  }
  return lost;
}

std::vector<std::pair<NodeId, ExchangeInquiry>> ReplyCache::inquiries() const {
  std::vector<std::pair<NodeId, ExchangeInquiry>> inquiries;
  if (orphans_ == 0) return inquiries;  // the usual case
  for (const auto& [id, initiator] : initiators_) {
    for (const auto& [counter, entry] : initiator.entries) {
      if (!entry.orphan()) continue;
      inquiries.emplace_back(id, ExchangeInquiry{counter, entry.reply.job, entry.reply.fragment});
    }
  }
  return inquiries;
}

void ReplyCache::mark_unsent(const NodeId& id, const ExchangeReply& reply) {
  Entry* const entry = find({id, reply.counter});
  if (entry == nullptr || entry->orphaned) return;  // an orphan's initiator is asked about the reply instead
  if (entry->stage == Stage::declined) entry->reply = reply;
  entry->unsent = any_unsent_ = true;
}

void ReplyCache::mark_unsent(const NodeId& id) {
  visit_taken(id, [&](std::uint64_t, Entry& entry) {
    if (entry.stage == Stage::answered && !entry.orphaned) entry.unsent = any_unsent_ = true;
  });
}

std::size_t ReplyCache::mark_overdue(const NodeId& id, TimeUs now_us, TimeUs patience_us) {
  std::size_t count = 0;
  visit_taken(id, [&](std::uint64_t, Entry& entry) {
    if (entry.stage != Stage::answered || entry.orphaned || now_us - entry.given_us < patience_us) return;
    entry.given_us = now_us;
    entry.unsent = any_unsent_ = true;
    ++count;
  });
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
  // Counters begin with the time of day, so the smallest belong to initiators that have been away for longest.
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

std::size_t ReplyCache::places_in_work() const {
  const auto replies = static_cast<std::size_t>(std::ranges::count_if(
      std::views::values(taken_), [this](const ExchangeId& id) { return find(id)->stage == Stage::answered; }));
  GOSSAMER_CHECK(free_places_.size() + replies <= capacity_);
  return capacity_ - free_places_.size() - replies;
}

void ReplyCache::check_invariants() const {
  GOSSAMER_CHECK(initiators_.size() <= max_initiators);
  std::map<NodeId, std::size_t> open;
  std::size_t orphans = 0;
  for (const auto& [place, id] : taken_) {
    const Entry* const entry = find(id);
    GOSSAMER_CHECK(entry != nullptr && entry->takes_place() && entry->place == place);
    open[id.initiator] += entry->open() ? 1 : 0;
    orphans += entry->orphan() ? 1 : 0;
  }
  for (const auto& [id, initiator] : initiators_)
    GOSSAMER_CHECK(open[id] == initiator.unacknowledged);
  GOSSAMER_CHECK(orphans == orphans_);
}

}  // namespace gossamer::gossip
