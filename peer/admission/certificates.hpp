// Keeps the certificates of members, so that no invitation is used by more nodes than it allows, and so that a node
// hears of a certificate that an operator has made for it elsewhere.
//
// A certificate whose warrant names its node takes precedence over any other, and the latest of several such holds.
// Otherwise the certificate that was heard of first holds, until the node itself shows another. So only the authority
// and the node can change which certificate of the node holds. An invitation for n nodes serves the n nodes that are
// heard of first. If members hear of different nodes at the same time, they agree, within settle_us, on the nodes whose
// certificates were made first. Owned by the overlay's Spread, on its thread; pure: times are arguments. Signatures are
// checked by the caller. Invariants: at most max_certificates, one for each node. If there are more, the oldest go, and
// no longer count for their invitations. A node shows its own certificate anyway: no other displaces it in the node's
// own table, so that others can say why they do not let the node in.
//
// Members that could not hear of each other for longer than settle_us may hold different nodes of one invitation, and
// keep them. No rule that is computed from the certificates could decide between them: whoever has the invitation's
// line chooses their dates and node ids. An operator decides (gossamerctl approve, which names the node).

#pragma once

#include <expected>
#include <functional>
#include <map>

#include "peer/admission/denials.hpp"

namespace gossamer::peer {

inline constexpr TimeUs settle_us = 20 * us_per_s;
/// A certificate that was made longer ago than this is settled, even at a member that hears of it only now. Otherwise
/// the holder of a used invitation could date another certificate earlier, and so put the rightful node out at each new
/// member. Clocks may differ by settled_age_us - settle_us.
inline constexpr TimeUs settled_age_us = settle_us + 60 * us_per_s;
/// The most nodes that are remembered because their invitation was used up.
inline constexpr std::size_t max_excess = 64;

class Certificates {
 public:
  enum class Source { hearsay, itself /* the node, or its operator */ };
  /// `change` as in Denials::Entry.
  struct Entry {
    Certificate certificate;
    std::uint64_t change = 0;
    TimeUs heard_at = 0;                   ///< when this node heard of it, by the monotonic clock
    std::optional<PublicKey> signer = {};  ///< who has signed the warrant; none: not looked at yet
  };
  /// A genuine certificate that does not hold here, since as many other nodes have used its invitation.
  struct Excess {
    Certificate certificate;
    TimeUs heard_at = 0;  ///< when this was found first, by the monotonic clock
  };

  /// Takes a certificate whose signatures hold. Refused if as many other nodes as its invitation allows have used it.
  /// If the table is full, the oldest certificate of another node that need not be kept goes, and one made with an
  /// invitation first. If that would be the new one, it is taken only if its node has shown it.
  Hearsay merge(const Certificate& heard, Source source, TimeUs now, TimeUs time_of_day,
                const std::function<bool(const NodeId&)>& is_to_be_kept, const std::optional<PublicKey>& signer = {});
  /// True if the certificate would change nothing here.
  [[nodiscard]] bool knows(const Certificate& heard, Source source) const;
  /// Null if no certificate of the node is known.
  [[nodiscard]] const Certificate* of(const NodeId& node) const;
  [[nodiscard]] const std::map<NodeId, Entry>& entries() const { return entries_; }
  /// The latest nodes that were refused, or put out again, because their invitation was used up; at most max_excess.
  /// A node that has got another certificate since is not among them.
  [[nodiscard]] const std::map<NodeId, Excess>& excess() const { return excess_; }
  /// Says, for people, that the certificate's invitation has been used by as many others as it is for, and by whom.
  /// Nothing if there is room for the certificate.
  [[nodiscard]] std::optional<std::string> used_up_for(const Certificate& certificate) const;
  /// Says which node this is. Its certificate is always kept.
  void set_own(const NodeId& own) { own_ = own; }
  /// Forgets the certificates that none of the new deciders stands behind. `new_authority`: see Denials::settle().
  void settle(const Deciders& deciders, bool new_authority);

  [[nodiscard]] std::uint64_t last_change() const { return last_change_; }
  /// See Denials::since().
  [[nodiscard]] std::vector<Certificate> since(std::uint64_t& change, std::size_t most) const;

  /// The text for the state folder has one certificate a line. The error says which line is wrong.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::expected<Certificates, std::string> parse(std::string_view text);

 private:
  bool make_room_in_invitation(const Certificate& coming, TimeUs now, TimeUs time_of_day);
  [[nodiscard]] std::vector<NodeId> other_users(const Certificate& of) const;
  void note_excess(const Certificate& certificate, TimeUs now);

  std::map<NodeId, Entry> entries_;
  std::map<NodeId, Excess> excess_;
  std::optional<NodeId> own_;
  std::uint64_t last_change_ = 0;
};

}  // namespace gossamer::peer
