// Spreads what the members of a cluster agree on from one to the next: who may sign, who is denied, which keys admit,
// and who has a certificate.
//
// Holds the node's own denials, key ring and certificates, and for each link what its other end has been told and is
// known to hold. Every link is told everything when it comes up, what is new when there is something new, and
// everything again every retell_us, so that nothing stays lost. Owned by the overlay, on its thread; pure: messages
// come in and go out as values, time is an argument. Bounded by the links and by the tables.

#pragma once

#include "peer/admission/certificates.hpp"
#include "peer/admission/key_ring.hpp"
#include "peer/throttle.hpp"

namespace gossamer::peer {

/// A node listens with a new key when all its neighbours say that they hold it, and at the latest after this time.
inline constexpr TimeUs promote_after_us = 60 * us_per_s;
/// A node that was given the ring, as it was then, is a newcomer until it has a link, for so long at most. There are at
/// most max_newcomers.
inline constexpr TimeUs newcomer_patience_us = 10 * us_per_s;
inline constexpr std::size_t max_newcomers = 64;
inline constexpr TimeUs retell_us = 600 * us_per_s;
/// A neighbour that begins to follow another authority is told everything again, but no sooner than this after the last
/// time.
inline constexpr TimeUs retell_pause_us = 5 * us_per_s;
/// A node that accepts several keys listens with the first for first_key_slot_us, then with each other key for
/// other_key_slot_us, and so on. So a node that was away while the key changed gets in with any of them after a while.
inline constexpr TimeUs first_key_slot_us = 8 * us_per_s;
inline constexpr TimeUs other_key_slot_us = 2 * us_per_s;
/// How many changes of the ring, and of denials, are taken from others in a burst, and then each second. Operators make
/// a few a year.
inline constexpr std::uint32_t ring_change_burst = 32;
inline constexpr double ring_changes_per_s = 0.1;
inline constexpr std::uint32_t denial_change_burst = 2048;
inline constexpr double denial_changes_per_s = 10;
/// Where there is an authority, changes must be signed and are not counted. Forged signatures are counted instead: a
/// neighbour that sends more of them than this is ignored for forgery_ban_us.
inline constexpr std::uint32_t forgery_burst = 16;
inline constexpr double forgeries_per_s = 0.1;
/// How many unknown certificates of one neighbour are checked in a burst, and then each second. Checking the signatures
/// of one takes a quarter of a millisecond.
inline constexpr std::uint32_t certificate_look_burst = 1024;
inline constexpr double certificate_looks_per_s = 2;
inline constexpr TimeUs forgery_ban_us = 60 * us_per_s;
/// How long a denial or key that is dated too far ahead of the clock here is kept unless a neighbour tells of it. A
/// neighbour that holds it tells everything again meanwhile.
inline constexpr TimeUs forget_ahead_after_us = retell_us + 60 * us_per_s;

class Spread {
 public:
  /// `own`: the node, whose certificate is always kept.
  Spread(KeyRing ring, Denials denials, Certificates certificates = {}, const NodeId& own = {})
      : ring_(std::move(ring)), denials_(std::move(denials)), certificates_(std::move(certificates)) {
    certificates_.set_own(own);
    settle(ring_, true);
  }

  [[nodiscard]] const KeyRing& ring() const { return ring_; }
  [[nodiscard]] const Denials& denials() const { return denials_; }
  [[nodiscard]] const Certificates& certificates() const { return certificates_; }

  /// The node was given the ring by this one, because it was invited.
  void given(const NodeId& node, TimeUs now);
  void link_up(const NodeId& node, TimeUs now) {
    newcomers_.erase(node);
    links_[node] = {};
    links_[node].up_at = links_[node].told_at = now;
  }
  void link_down(const NodeId& node) { links_.erase(node); }
  /// The next message for the neighbour. It counts as told after said(); without said() it comes again.
  [[nodiscard]] std::optional<ControlMessage> next_for(const NodeId& node, TimeUs now);
  void said(const NodeId& node);

  /// Takes a message from a neighbour. It is news if any part of it is. Of denials and certificates, only the records
  /// that are news stay in the list.
  [[nodiscard]] Hearsay heard(const NodeId& from, DenialList& list, TimeUs time_of_day, TimeUs now);
  [[nodiscard]] Hearsay heard(const NodeId& from, const RingState& state, TimeUs time_of_day, TimeUs now);
  [[nodiscard]] Hearsay heard(const NodeId& from, const DeputyList& list, TimeUs time_of_day, TimeUs now);
  /// Takes the deputies that a node has shown before there is a link to it. Only those of the authority that this node
  /// follows count.
  [[nodiscard]] Hearsay shown(const DeputyList& list, TimeUs time_of_day, TimeUs now);
  [[nodiscard]] Hearsay heard(const NodeId& from, CertificateList& list, TimeUs time_of_day, TimeUs now);

  /// Says for people what was refused of the latest message, and why, as "KIND: WHAT". Empty if nothing was refused.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

  /// Takes a certificate that its node or an operator has shown here, and has everyone told of it. The error is for
  /// people.
  [[nodiscard]] std::expected<Hearsay, std::string> take(const Certificate& certificate, TimeUs time_of_day,
                                                         TimeUs now);
  /// False if the known decision is as late or later.
  bool decide(const Denial& denial) { return denials_.decide(denial, ring_.deciders()); }
  /// Forgets denials, keys and retirements that were decided here while the clock was ahead, and that nobody else has
  /// taken: otherwise they would strike when their date comes near. If instead the clock is behind now, others hold
  /// them, and nothing is forgotten; nor is it while nobody is linked. Returns what was forgotten, for people.
  [[nodiscard]] std::vector<std::string> forget_ahead(TimeUs time_of_day, TimeUs now);
  /// Replaces the ring by a changed one, and has everyone told of it.
  void set_ring(KeyRing ring, TimeUs now);
  /// The key to listen with instead of the present one, if all neighbours hold it and there are no newcomers, who know
  /// the present one only; or if they have had promote_after_us.
  [[nodiscard]] std::optional<Fingerprint> promotion(TimeUs now) const;
  /// The place in the ring of the key to listen with at this time.
  [[nodiscard]] std::size_t key_slot(TimeUs since_start) const;
  /// How many neighbours are known to hold a key.
  [[nodiscard]] std::size_t holders(const Fingerprint& fingerprint) const;

 private:
  /// How far the other end of a link has been told.
  struct Cursor {
    std::uint64_t denial_change = 0;
    std::uint64_t ring_version = 0;
    std::uint64_t deputies_version = 0;
    std::uint64_t certificate_change = 0;
  };
  struct Told {
    Cursor told;
    Cursor next;  ///< the cursor after the message that next_for() gave last
    TimeUs up_at = 0;
    TimeUs told_at = 0;  ///< when it began to be told everything
    std::vector<Fingerprint> holds;
    std::optional<PublicKey> authority = {};  ///< the one that the other end follows, once it has told its ring
    bool has_told_ring = false;
    bool wants_all = false;  ///< it follows another authority now, and may have forgotten signatures
    Throttle forgeries{forgery_burst, forgeries_per_s};
    Throttle looks{certificate_look_burst, certificate_looks_per_s};
    TimeUs banned_until = 0;
  };

  void settle(const KeyRing& ring, bool new_authority);
  template <class Heard>
  Hearsay merge_into_ring(Told& from, const char* kind, const Heard& heard, TimeUs time_of_day, TimeUs now);
  static void note_forgery(Told& by, TimeUs now);
  void note_refusal(const char* kind, const std::string& what);
  void note_shared(const Statement& decision);
  /// True for a while after too many forgeries. Without an authority no signature is checked, so nobody is banned.
  [[nodiscard]] bool is_banned(const Told& link, TimeUs now) const {
    return ring_.deciders() && now < link.banned_until;
  }
  Hearsay merge(const Certificate& genuine, const PublicKey& signer, Certificates::Source source, TimeUs now,
                TimeUs time_of_day);

  KeyRing ring_;
  Denials denials_;
  Certificates certificates_;
  std::uint64_t ring_version_ = 1;
  std::uint64_t deputies_version_ = 1;
  TimeUs ring_changed_at_ = 0;
  std::map<NodeId, Told> links_;
  std::map<NodeId, TimeUs> newcomers_;  ///< when each was given the ring
  std::string refusal_;
  /// A decision that is held here and dated too far ahead.
  struct Ahead {
    TimeUs since = 0;
    bool is_shared = false;  ///< a neighbour has told of it meanwhile
  };
  std::map<Statement, Ahead> ahead_;
  Throttle ring_throttle_{ring_change_burst, ring_changes_per_s};
  Throttle denial_throttle_{denial_change_burst, denial_changes_per_s};
};

}  // namespace gossamer::peer
