// Which nodes the cluster does not want: decisions of its operators, that every member keeps and tells the others.
//
// A record says of one node that it is denied, or allowed again, and when that was decided. Of two records about a node
// the later one holds, and where the times are equal the larger one, so that all members come to hold the same, in
// whatever order they hear. Owned by the overlay's Spread, on its thread; pure: the time of day is an argument.
// Invariants: at most max_denials records, one for each node; none that another sent is dated more than max_ahead_us
// ahead of the clock at that time, so that nobody can settle a matter for ever.

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
  refused,  ///< It is against the rules: dated too far ahead, or too much.
};

class Denials {
 public:
  /// `change` numbers what is new here, so that each link can be told what it has not been told.
  struct Entry {
    Denial denial;
    std::uint64_t change = 0;
  };

  /// What another member says. Refused if there is no room: when full, a denial may only take the place of an allowed
  /// node's.
  Hearsay merge(const Denial& heard, TimeUs time_of_day);
  /// What our own operator says: dated later than what is known, or now. Nothing if there is no room.
  std::optional<Denial> decide(const NodeId& node, bool denied, std::string reason, TimeUs time_of_day);

  [[nodiscard]] bool is_denied(const NodeId& node) const;
  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  [[nodiscard]] std::uint64_t last_change() const { return last_change_; }
  /// Up to `most` records that are newer here than `change`, oldest change first; `change` becomes the last one's.
  [[nodiscard]] std::vector<Denial> since(std::uint64_t& change, std::size_t most) const;

  /// One record a line, for the state folder, and back. The error says which line is wrong.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::expected<Denials, std::string> parse(std::string_view text);

 private:
  bool make_room(bool for_denial);
  void put(Denial denial);

  std::map<NodeId, Entry> entries_;
  std::uint64_t last_change_ = 0;
};

}  // namespace gossamer::peer
