// Keeps the certificates of members, so that no invitation is used by more nodes than it is for, and so that a node is
// told of the one that its operator has made for it elsewhere.
//
// A node's certificate by a warrant that names it holds before any other, and of several such the latest. Otherwise the
// first that is heard of holds, until the node itself shows another. So nobody but the authority and the node changes
// what holds of a node. An invitation for so many nodes holds for those that are heard of first. Members that hear of
// others at the same time agree, within settle_us, on those whose certificates were made first. Owned by the overlay's
// Spread, on its thread; pure: times are arguments. Signatures are checked by the caller. Invariants: at most
// max_certificates, one for each node. Where there are more, the oldest go, and with them their count for the
// invitation; a node shows its own certificate anyway.

#pragma once

#include <expected>
#include <functional>
#include <map>

#include "peer/admission/denials.hpp"

namespace gossamer::peer {

inline constexpr TimeUs settle_us = 20 * us_per_s;
/// Certificates that were made longer ago than this are settled, also for who hears of them only now: otherwise whoever
/// has a used invitation could date a certificate of his own before it, and put its node out at each new member. Clocks
/// may be apart by the difference.
inline constexpr TimeUs settled_age_us = settle_us + 60 * us_per_s;

class Certificates {
 public:
  enum class Source { hearsay, itself /* the node, or its operator */ };
  /// As in Denials.
  struct Entry {
    Certificate certificate;
    std::uint64_t change = 0;
    TimeUs heard_at = 0;                   ///< by the monotonic clock
    std::optional<PublicKey> signer = {};  ///< who has signed the warrant; none: not looked at yet
  };

  /// Takes a genuine certificate. Refused if its invitation has been used by as many others as it is for. If the table
  /// is full, the oldest goes that is not to be kept, and what came by invitations before the others; what would go
  /// itself is taken only if its node has shown it.
  Hearsay merge(const Certificate& heard, Source source, TimeUs now, TimeUs time_of_day,
                const std::function<bool(const NodeId&)>& is_to_be_kept, const std::optional<PublicKey>& signer = {});
  /// It changes nothing here.
  [[nodiscard]] bool knows(const Certificate& heard, Source source) const;
  /// Null: none is known.
  [[nodiscard]] const Certificate* of(const NodeId& node) const;
  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  /// Others decide from now on: forgets those that none of them stands behind. `new_authority` as in Denials.
  void settle(const Deciders& deciders, bool new_authority);

  [[nodiscard]] std::uint64_t last_change() const { return last_change_; }
  /// As in Denials.
  [[nodiscard]] std::vector<Certificate> since(std::uint64_t& change, std::size_t most) const;

  /// The text for the state folder has one certificate a line. The error says which line is wrong.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::expected<Certificates, std::string> parse(std::string_view text);

 private:
  bool make_room_in_invitation(const Certificate& coming, TimeUs now, TimeUs time_of_day);

  std::map<NodeId, Entry> entries_;
  std::uint64_t last_change_ = 0;
};

}  // namespace gossamer::peer
