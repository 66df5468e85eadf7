// Decides which addresses to dial, and when. Configured addresses are always kept, and learned ones until they have
// failed for a while. An address is dialled only while it is wanted. Back-off between attempts doubles each time, with
// jitter. It also doubles from link to link while none lasts longer than the longest back-off.
//
// Pure: time, randomness and results come in as arguments. One owner, one thread.

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
  /// If two nodes learned of each other, the one with the smaller id dials, and the other one after this long, too.
  TimeUs courtesy_us = us_per_s;
  /// A learned address that has failed for this long is forgotten.
  TimeUs forget_us = 600 * us_per_s;
};

struct BookEntry {
  Address address;
  bool configured = false;
  std::optional<NodeId> node;  ///< the node that answers there, or is said to
  bool failed_once = false;
  bool dialling = false;
  TimeUs next_attempt = 0;
  TimeUs alive_at = 0;       ///< when it was learned, or last linked
  TimeUs wait = 0;           ///< the back-off before jitter; 0: no attempt has failed since the last link
  TimeUs unsteady_wait = 0;  ///< the back-off after the last link, if that was short; 0: none was
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
  /// Adds an address where somebody could once be dialled.
  void remember(const Address& address, TimeUs now);
  /// `node` is said to be at this address, and no longer where it was said to be before. False if the book is full.
  /// `at_once`: dial without waiting for courtesy_us, because the other node will not dial.
  bool learn(const NodeId& node, const Address& address, TimeUs now, bool at_once = false);
  /// The node has left: its learned addresses go.
  void forget(const NodeId& node);

  /// Up to `most` wanted addresses to dial now. They count as being dialled until failed(), link_up() or released().
  [[nodiscard]] std::vector<Address> take_due(
      TimeUs now, std::size_t most, const IsLinked& is_linked,
      const IsWanted& is_wanted = [](const BookEntry&) { return true; });
  /// The node at this address has proven who it is.
  void identified(const Address& address, const NodeId& node);
  /// An attempt ended without a link. True if the error differs from the last one there, and is worth a line in the
  /// log.
  bool failed(const Address& address, const std::string& error, TimeUs now, gossip::Random& random);
  /// An attempt ended because a link to that node exists or is being made otherwise. That is no failure.
  void released(const Address& address, TimeUs now, gossip::Random& random);
  /// Makes every address due, because what failed before may succeed now.
  void hurry(TimeUs now);
  void link_up(const NodeId& node, TimeUs now);
  void link_down(const NodeId& node, TimeUs now, gossip::Random& random);

  /// The node at an address, if one has answered there or is said to.
  [[nodiscard]] std::optional<NodeId> node_at(const std::string& address) const;
  /// True if dialling one of this node's addresses has failed since it was learned.
  [[nodiscard]] bool has_failed(const NodeId& node) const;
  /// True if every configured address (`all`: every address) is linked, is our own, or has failed once.
  [[nodiscard]] bool all_dialled(const IsLinked& is_linked, bool all = false) const;
  [[nodiscard]] const std::map<std::string, BookEntry>& entries() const { return entries_; }

 private:
  BookEntry* find(const Address& address);
  /// Adds an address that is not known, to be dialled at once. Null if the book is full.
  [[nodiscard]] BookEntry* add(const Address& address, TimeUs now);
  void postpone(BookEntry& entry, TimeUs now, gossip::Random& random) const;

  AddressBookOptions options_;
  NodeId self_;
  std::map<std::string, BookEntry> entries_;  ///< by Address::text(); at most max_members
};

}  // namespace gossamer::peer
