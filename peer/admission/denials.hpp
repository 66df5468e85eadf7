// Keeps which nodes the cluster denies: decisions of its operators, which every member keeps and tells the others.
//
// A record says that a node is denied, or allowed again, and when that was decided. The later of two records about a
// node holds, or the larger one if the times are equal, so all members end up with the same records, in whatever order
// they hear of them. Owned by the overlay's Spread, on its thread; pure: the time of day is an argument. Invariants: at
// most max_denials records, one for each node. No record that another node sent is dated more than max_ahead_us ahead
// of the clock at that time, so nobody can make a decision that no later one replaces. If the cluster has an authority,
// a record from another node is taken only if the authority has signed it, or a deputy who may.

#pragma once

#include <expected>
#include <map>
#include <optional>
#include <string_view>

#include "peer/admission/refusal.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

/// For the log and the audit: "node ... is denied: REASON".
[[nodiscard]] std::string words_of(const Denial& denial);
/// 32 hexadecimal digits.
[[nodiscard]] std::optional<NodeId> parse_node_id(std::string_view text);

/// What became of something that another member has told.
enum class Hearsay {
  news,     ///< It holds from now on.
  known,    ///< The record held here is the same, or later.
  refused,  ///< It is against the rules.
};

class Denials {
 public:
  /// `change` is the number of the entry's latest change, so that each link can be told what it has not been told yet.
  struct Entry {
    Denial denial;
    std::uint64_t change = 0;
    std::optional<PublicKey> signer = {};  ///< nothing: nobody has signed it, or there is no authority
  };

  /// Takes a record from another member. Refused if there is no room: in a full table, a denial may only replace the
  /// record of an allowed node or, if the denied node is `linked` with this one, the denial with the latest date. With
  /// `deciders`, a record that they have signed replaces an unsigned one, whatever the dates, also in a full table.
  std::expected<Hearsay, Refusal> merge(const Denial& heard, TimeUs time_of_day, bool linked = false,
                                        const std::optional<Deciders>& deciders = {});
  /// True if the record says nothing new. Checks no signature.
  [[nodiscard]] bool knows(const Denial& heard, bool has_authority) const;
  /// A decision of our own operator, dated now, or just after the known decision if that is later. Where there is an
  /// authority, an unsigned decision does not count as known.
  [[nodiscard]] Denial propose(const NodeId& node, bool denied, std::string reason, TimeUs time_of_day,
                               bool has_authority = false) const;
  /// Takes a decision of our own operator. It always finds room. False if the known decision is as late or later.
  bool decide(const Denial& denial, const std::optional<Deciders>& deciders = {});
  /// Follows new deciders. Signatures of anybody else are forgotten, but the decisions stay. Decisions of deputies who
  /// may no longer sign them are forgotten altogether. `new_authority`: the authority has changed, not only its
  /// deputies.
  void settle(const Deciders& deciders, bool new_authority);

  /// Forgets the record about a node.
  void forget(const NodeId& node) { entries_.erase(node); }

  [[nodiscard]] bool is_denied(const NodeId& node) const;
  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  [[nodiscard]] std::uint64_t last_change() const { return last_change_; }
  /// Up to `most` records that have changed after the change number `change`, oldest change first. `change` becomes the
  /// number of the last one given.
  [[nodiscard]] std::vector<Denial> since(std::uint64_t& change, std::size_t most) const;

  /// The text for the state folder has one record a line. The error says which line is wrong.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::expected<Denials, std::string> parse(std::string_view text);

 private:
  bool make_room(const Denial& coming, bool must, bool has_authority);
  void put(Denial denial, const std::optional<PublicKey>& signer = {});

  std::map<NodeId, Entry> entries_;
  std::uint64_t last_change_ = 0;
};

}  // namespace gossamer::peer
