// Which addresses to dial, and when: the configured ones for ever, those that members are said to have until they have
// failed for a while, and all of them only while they are wanted. Each waits between its attempts, twice as long each
// time, with jitter.
//
// Decides only: time, randomness and outcomes come in as arguments. One owner, one thread.

#pragma once

#include <functional>
#include <map>
#include <optional>

#include "gossip/random.hpp"
#include "peer/address.hpp"
#include "peer/limits.hpp"

namespace gossamer::peer {

struct AddressBookOptions {
  TimeUs backoff_least_us = 100 * us_per_ms;
  TimeUs backoff_most_us = 5 * us_per_s;
  /// Of two nodes that learned of each other the one with the smaller id dials; the other does so too after this long.
  TimeUs courtesy_us = us_per_s;
  /// A learned address that has failed for this long is forgotten.
  TimeUs forget_us = 600 * us_per_s;
};

struct BookEntry {
  Address address;
  bool configured = false;
  std::optional<NodeId> node;  ///< who answers there, or is said to
  bool failed_once = false;
  bool dialling = false;
  TimeUs next_attempt = 0;
  TimeUs alive_at = 0;  ///< learned of, or last linked
  TimeUs wait = 0;      ///< before jitter; 0: no attempt has failed since the last link
  std::string last_error;
};

class AddressBook {
 public:
  using IsLinked = std::function<bool(const NodeId&)>;
  using IsWanted = std::function<bool(const BookEntry&)>;

  AddressBook(AddressBookOptions options, const NodeId& self) : options_(options), self_(self) {}

  /// Replaces the configured addresses; known ones keep their state. Those beyond max_members are left out.
  void set_configured(const std::vector<Address>& addresses, TimeUs now);
  void add_configured(const Address& address, TimeUs now);
  /// Somebody could once be dialled there.
  void remember(const Address& address, TimeUs now);
  /// `node` is said to be dialled there, and no longer where it was said to be before. False if the book is full.
  /// `at_once`: it is not to be expected that the other dials.
  bool learn(const NodeId& node, const Address& address, TimeUs now, bool at_once = false);
  /// The node has left: its learned addresses go.
  void forget(const NodeId& node);

  /// Up to `most` addresses to dial now, of those that are wanted; they count as being dialled until failed(),
  /// identified as linked, or released().
  [[nodiscard]] std::vector<Address> take_due(
      TimeUs now, std::size_t most, const IsLinked& is_linked,
      const IsWanted& is_wanted = [](const BookEntry&) { return true; });
  /// The node there has proven who it is.
  void identified(const Address& address, const NodeId& node);
  /// An attempt ended without a link. True if the error differs from the last one there: worth a line in the log.
  bool failed(const Address& address, const std::string& error, TimeUs now, gossip::Random& random);
  /// An attempt ended because a link to that node exists or is being made otherwise: no failure.
  void released(const Address& address, TimeUs now, gossip::Random& random);
  /// What failed before may succeed now: everything is due.
  void hurry(TimeUs now);
  void link_up(const NodeId& node, TimeUs now);
  void link_down(const NodeId& node, TimeUs now, gossip::Random& random);

  /// The node at an address, if one has answered there or is said to.
  [[nodiscard]] std::optional<NodeId> node_at(const std::string& address) const;
  /// Dialling this node's addresses has failed since they were learned.
  [[nodiscard]] bool has_failed(const NodeId& node) const;
  /// Every configured address, or every one at all, is linked, is our own, or has failed once.
  [[nodiscard]] bool settled(const IsLinked& is_linked, bool all = false) const;
  [[nodiscard]] const std::map<std::string, BookEntry>& entries() const { return entries_; }

 private:
  BookEntry* find(const Address& address);
  void postpone(BookEntry& entry, TimeUs now, gossip::Random& random) const;

  AddressBookOptions options_;
  NodeId self_;
  std::map<std::string, BookEntry> entries_;  ///< by Address::text(); at most max_members
};

}  // namespace gossamer::peer
