// Keeps which nodes the cluster denies: decisions of its operators, which every member keeps and tells the others.
//
// A record says that a node is denied, or allowed again, and when that was decided. The later of two records about a
// node holds, or the larger one if the times are equal, so all members come to hold the same in whatever order they
// hear. Owned by the overlay's Spread, on its thread; pure: the time of day is an argument. Invariants: at most
// max_denials records, one for each node. No record that another node sent is dated more than max_ahead_us ahead of the
// clock at that time, so nobody can settle a matter for ever. Where the cluster has an authority, no record of another
// node is taken that neither the authority has signed nor a deputy who may.

#pragma once

#include <expected>
#include <map>
#include <optional>
#include <string_view>

#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

/// 32 hexadecimal digits.
[[nodiscard]] std::optional<NodeId> parse_node_id(std::string_view text);

/// What became of something that another member has told.
enum class Hearsay {
  news,     ///< It holds from now on.
  known,    ///< What we hold is the same, or later.
  refused,  ///< It is against the rules: dated too far ahead, too much, or not signed by whoever may.
  forged,   ///< Nobody has signed it who ever could.
};

class Denials {
 public:
  /// `change` numbers what is new here, so that each link can be told what it has not been told.
  struct Entry {
    Denial denial;
    std::uint64_t change = 0;
    std::optional<PublicKey> signer = {};  ///< nothing: nobody has signed it, or there is no authority that could tell
  };

  /// Takes a record from another member. Refused if there is no room: when full, a denial may only take the place of an
  /// allowed node's, or, if its node is `linked` with this one, of the denial that is dated last.
  /// With `deciders`, what they have signed replaces what nobody has, whatever the dates, also when full.
  Hearsay merge(const Denial& heard, TimeUs time_of_day, bool linked = false,
                const std::optional<Deciders>& deciders = {});
  /// Nothing that it says is new here. Checks no signature.
  [[nodiscard]] bool knows(const Denial& heard, bool has_authority) const;
  /// A decision of our own operator, dated now, or later than what is known and not overruled.
  [[nodiscard]] Denial propose(const NodeId& node, bool denied, std::string reason, TimeUs time_of_day,
                               bool has_authority = false) const;
  /// Takes a decision of our own operator. It always finds room. False if what is known is as late.
  bool decide(const Denial& denial, const std::optional<Deciders>& deciders = {});
  /// Others decide from now on: signatures that are not of these are forgotten, and the decisions stay. Decisions of
  /// deputies who may not sign them any more are forgotten as a whole. `new_authority`: not only the deputies are
  /// others.
  void settle(const Deciders& deciders, bool new_authority);

  [[nodiscard]] bool is_denied(const NodeId& node) const;
  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  [[nodiscard]] std::uint64_t last_change() const { return last_change_; }
  /// Up to `most` records that are newer here than `change`, oldest change first; `change` becomes the last one's.
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
