// Keeps who decided what for the cluster: denials, keys and authorities that this node has followed, and those that it
// has refused.
//
// The records are for people; no decision depends on them. Owned by the overlay's Agreement, on its thread; pure: the
// time of day is an argument. Invariants: at most the newest max_audit_taken records of followed decisions, and
// max_audit_refused of refused ones. Repeated refusals of one node and kind (the text up to the first colon) are one
// record with the latest text, so that a node that is refused again and again does not drive out the records of others.

#pragma once

#include <deque>
#include <expected>
#include <string>
#include <string_view>

#include "gossip/types.hpp"

namespace gossamer::peer {

inline constexpr std::size_t max_audit_taken = 512;
inline constexpr std::size_t max_audit_refused = 64;

struct AuditRecord {
  TimeUs at = 0;            ///< microseconds since 1970; of repeated refusals, the last one
  NodeId told_by;           ///< the neighbour that told it; this node itself if its operator decided
  bool is_taken = false;    ///< false: refused
  std::uint64_t times = 1;  ///< how often it was refused
  std::string what;         ///< plain text
};

class Audit {
 public:
  void note_taken(TimeUs at, const NodeId& told_by, std::string what);
  void note_refused(TimeUs at, const NodeId& told_by, std::string what);

  /// All records, ordered by time.
  [[nodiscard]] std::vector<AuditRecord> records() const;
  /// The text for the state folder has one record a line. The error says which line is wrong.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::expected<Audit, std::string> parse(std::string_view text);

 private:
  std::deque<AuditRecord> taken_;
  std::deque<AuditRecord> refused_;
};

}  // namespace gossamer::peer
