#include "peer/overlay/address_book.hpp"

#include <algorithm>

namespace gossamer::peer {

BookEntry* AddressBook::find(const Address& address) {
  const auto found = entries_.find(address.text());
  return found == entries_.end() ? nullptr : &found->second;
}

BookEntry* AddressBook::add(const Address& address, TimeUs now) {
  if (entries_.size() >= max_members) return nullptr;
  BookEntry& added = entries_[address.text()];
  added.address = address;
  added.next_attempt = added.alive_at = now;
  return &added;
}

void AddressBook::set_configured(const std::vector<Address>& addresses, TimeUs now) {
  for (auto& [text, entry] : entries_)
    entry.configured = false;
  for (const Address& address : addresses)
    add_configured(address, now);
}

void AddressBook::add_configured(const Address& address, TimeUs now) {
  BookEntry* entry = find(address);
  if (entry == nullptr) entry = add(address, now);
  if (entry != nullptr) entry->configured = true;
}

void AddressBook::remember(const Address& address, TimeUs now) {
  if (find(address) == nullptr) (void)add(address, now);
}

bool AddressBook::learn(const NodeId& node, const Address& address, TimeUs now, bool at_once) {
  if (node == self_) return true;
  if (BookEntry* known = find(address)) {
    // Who is at a configured address is found out by dialling it, not by hearsay.
    if (!known->configured) known->node = node;
    return true;
  }
  std::erase_if(entries_, [&](const auto& item) {
    return !item.second.configured && !item.second.dialling && item.second.node == node;
  });
  BookEntry* entry = add(address, now);
  if (entry == nullptr) return false;
  entry->node = node;
  if (!at_once && !(self_ < node)) entry->next_attempt += options_.courtesy_us;
  return true;
}

void AddressBook::forget(const NodeId& node) {
  std::erase_if(entries_, [&](const auto& item) { return !item.second.configured && item.second.node == node; });
}

std::vector<Address> AddressBook::take_due(TimeUs now, std::size_t most, const IsLinked& is_linked,
                                           const IsWanted& is_wanted) {
  std::erase_if(entries_, [&](const auto& item) {
    const BookEntry& entry = item.second;
    return !entry.configured && !entry.dialling && now - entry.alive_at > options_.forget_us &&
           !(entry.node && is_linked(*entry.node));
  });
  std::vector<Address> due;
  for (auto& [text, entry] : entries_) {
    if (due.size() >= most) break;
    if (entry.dialling || now < entry.next_attempt) continue;
    if (entry.node && (*entry.node == self_ || is_linked(*entry.node))) continue;
    if (!is_wanted(entry)) continue;
    entry.dialling = true;
    due.push_back(entry.address);
  }
  return due;
}

void AddressBook::identified(const Address& address, const NodeId& node) {
  if (BookEntry* entry = find(address)) entry->node = node;
}

bool AddressBook::failed(const Address& address, const std::string& error, TimeUs now, gossip::Random& random) {
  BookEntry* entry = find(address);
  if (entry == nullptr) return true;
  const bool news = entry->last_error != error;
  entry->last_error = error;
  entry->failed_once = true;
  entry->dialling = false;
  postpone(*entry, now, random);
  return news;
}

void AddressBook::released(const Address& address, TimeUs now, gossip::Random& random) {
  BookEntry* entry = find(address);
  if (entry == nullptr) return;
  entry->dialling = false;
  postpone(*entry, now, random);
}

void AddressBook::postpone(BookEntry& entry, TimeUs now, gossip::Random& random) const {
  entry.wait = std::clamp(2 * entry.wait, options_.backoff_least_us, options_.backoff_most_us);
  entry.next_attempt = now + static_cast<TimeUs>(static_cast<double>(entry.wait) * (0.5 + 0.5 * random.uniform()));
}

void AddressBook::hurry(TimeUs now) {
  for (auto& [text, entry] : entries_) {
    entry.wait = entry.unsteady_wait = 0;
    entry.next_attempt = std::min(entry.next_attempt, now);
  }
}

void AddressBook::link_up(const NodeId& node, TimeUs now) {
  for (auto& [text, entry] : entries_) {
    if (entry.node != node) continue;
    entry.wait = 0;
    entry.last_error.clear();
    entry.alive_at = now;
    entry.dialling = false;
  }
}

void AddressBook::link_down(const NodeId& node, TimeUs now, gossip::Random& random) {
  for (auto& [text, entry] : entries_) {
    if (entry.node != node) continue;
    const bool was_steady = now - entry.alive_at >= options_.backoff_most_us;
    entry.wait = was_steady ? 0 : entry.unsteady_wait;
    entry.alive_at = now;
    postpone(entry, now, random);
    entry.unsteady_wait = entry.wait;
  }
}

std::optional<NodeId> AddressBook::node_at(const std::string& address) const {
  const auto found = entries_.find(address);
  return found == entries_.end() ? std::nullopt : found->second.node;
}

bool AddressBook::has_failed(const NodeId& node) const {
  return std::ranges::any_of(entries_,
                             [&](const auto& item) { return item.second.node == node && item.second.failed_once; });
}

bool AddressBook::all_dialled(const IsLinked& is_linked, bool all) const {
  return std::ranges::all_of(entries_, [&](const auto& item) {
    const BookEntry& entry = item.second;
    if ((!entry.configured && !all) || entry.failed_once) return true;
    return entry.node && (*entry.node == self_ || is_linked(*entry.node));
  });
}

}  // namespace gossamer::peer
