// Keeps who decided what for the cluster: denials, keys and authorities that this node has followed, and those that it
// has refused.
//
// For people: nothing is decided on it. Owned by the overlay's Agreement, on its thread; pure: the time of day is an
// argument. Invariants: at most max_audit_taken records of what was followed, the newest, and max_audit_refused of what
// was not, one for each node and kind, so that whoever is refused again and again drives out nobody else's.

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
  TimeUs at = 0;            ///< microseconds since 1970; of several, the last
  NodeId told_by;           ///< the neighbour; this node itself where its operator decided
  bool is_taken = false;    ///< false: refused
  std::uint64_t times = 1;  ///< refused so often
  std::string what;         ///< plain text
};

class Audit {
 public:
  void note_taken(TimeUs at, const NodeId& told_by, std::string what);
  void note_refused(TimeUs at, const NodeId& told_by, std::string what);

  /// In the order of time.
  [[nodiscard]] std::vector<AuditRecord> records() const;
  /// The text for the state folder has one record a line. The error says which line is wrong.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::expected<Audit, std::string> parse(std::string_view text);

 private:
  std::deque<AuditRecord> taken_;
  std::deque<AuditRecord> refused_;
};

}  // namespace gossamer::peer
