// Holds the cluster keys that a node accepts, when each was made, which are retired, and which one it listens with.
//
// The ring grows by add() and shrinks by retire(). Every member is told of it and merges it into its own. A key is
// known by its fingerprint, and a retired key never comes back. A node listens with the newest key once its neighbours
// hold that key, too (peer/admission/spread.hpp decides when). Owned by the overlay's Spread, on its thread; pure, but
// for the random bytes of a new key: the time of day is an argument. Invariants: 1 to max_cluster_keys keys, all
// different, none of them retired; at most max_retired_keys retired ones. The ring also knows the cluster's authority,
// if it has one (peer/keys/authority.hpp): from then on, a key or a retirement from another member is taken only if the
// authority or one of its deputies has signed it. The authority may also rule that nodes must show certificates. A node
// follows the first authority that it hears of, unless its operator has dropped that one. The secrets are in the
// operator's key file, and what is known about the keys is in the state folder (notes()).

#pragma once

#include "peer/admission/refusal.hpp"
#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

/// For the log and the audit: "cluster key FINGERPRINT", "the end of cluster key FINGERPRINT".
[[nodiscard]] std::string words_of(const RingKey& key);
[[nodiscard]] std::string words_of(const RetiredKey& key);

class KeyRing {
 public:
  /// A ring of keys of which nothing else is known.
  KeyRing(const ClusterKeys& keys);  // NOLINT(google-explicit-constructor)
  /// Makes the ring from the keys of a file and the notes about them. Retired keys are left out. An error if no key is
  /// left.
  [[nodiscard]] static std::expected<KeyRing, std::string> restore(const ClusterKeys& keys, std::string_view notes);
  /// Makes the ring from what a member gives to a joining node. An error if that makes no sense.
  [[nodiscard]] static std::expected<KeyRing, std::string> adopt(const RingState& state,
                                                                 const DeputyList& deputies = {});

  /// The key to listen with.
  [[nodiscard]] const RingKey& first() const { return keys_.front(); }
  [[nodiscard]] std::span<const RingKey> keys() const { return keys_; }
  [[nodiscard]] std::span<const RetiredKey> retired() const { return retired_; }
  [[nodiscard]] ClusterKeys cluster_keys() const;
  [[nodiscard]] RingState state() const { return {keys_, retired_, authority(), rule_}; }
  /// The authority and its deputies.
  [[nodiscard]] const std::optional<Deciders>& deciders() const { return deciders_; }
  [[nodiscard]] std::optional<PublicKey> authority() const {
    return deciders_ ? std::optional(deciders_->authority) : std::nullopt;
  }
  [[nodiscard]] DeputyList deputy_list() const {
    return {authority(), deciders_ ? deciders_->deputies : std::vector<Deputy>{}};
  }
  /// True if nodes are let in with a certificate only.
  [[nodiscard]] bool asks_for_certificates() const { return rule_ && rule_->certificates; }
  /// A rule that is later than the present one, without a signature.
  [[nodiscard]] AdmissionRule propose_rule(bool certificates, TimeUs time_of_day) const;
  void set_rule(const AdmissionRule& rule) { rule_ = rule; }
  /// True if this rule or a later one is held here.
  [[nodiscard]] bool is_held(const AdmissionRule& rule) const;
  /// Follows this authority. Signatures, the rule and the deputies of any other are forgotten; keys and retirements
  /// stay. Nothing: drops the present authority, and remembers not to take it from others again.
  void set_authority(const std::optional<PublicKey>& authority);
  /// Proposes what the authority says about a key, dated later than what is known. set_deputy() fails if the decision
  /// is not later, or if there are too many deputies.
  [[nodiscard]] Deputy propose_deputy(const PublicKey& key, std::uint8_t powers, std::string name,
                                      TimeUs time_of_day) const;
  [[nodiscard]] std::expected<void, std::string> set_deputy(const Deputy& deputy);
  /// Adds these signatures to the keys and retirements that they are about.
  void take_signatures(const Signatures& signatures);
  /// True if everything in `heard` is held here, and is signed here where it is signed there.
  [[nodiscard]] bool knows(const RingState& heard) const;
  /// True if everything in `heard` is held here, or belongs to another authority.
  [[nodiscard]] bool knows(const DeputyList& heard) const;
  /// The text for the state folder has one line for each key, and no secrets.
  [[nodiscard]] std::string notes() const;
  [[nodiscard]] bool holds(const Fingerprint& fingerprint) const;
  /// The key made last, if it is newer than the one listened with.
  [[nodiscard]] std::optional<Fingerprint> successor() const;

  struct Merge {
    bool changed = false;
    bool forged = false;  ///< a signature is of no decider, present or dismissed
    /// The first decision that was refused, and why, for people.
    std::optional<std::string> refused = {};

    void refuse(Refusal why, const std::string& what, TimeUs dated_at) {
      if (!refused) refused = words_of(why, what, dated_at);
    }
  };
  /// Takes what another member holds. If the key that we listen with is retired, its successor takes its place. If
  /// every key is retired, the newest stays.
  [[nodiscard]] Merge merge(const RingState& heard, TimeUs time_of_day);
  /// Takes the deputies that another member holds. Signatures of those who may no longer sign are forgotten.
  [[nodiscard]] Merge merge(const DeputyList& heard, TimeUs time_of_day);
  /// Proposes a new key, dated later than all others. An error if the ring is full.
  [[nodiscard]] std::expected<RingKey, std::string> propose(TimeUs time_of_day) const;
  /// Adds a new key, as the last to be tried. An error if the ring is full.
  [[nodiscard]] std::expected<void, std::string> add(const RingKey& key);
  /// Forgets this key, or that this key is retired. The last key stays. False if nothing was forgotten.
  bool forget(const Statement& decision);
  /// Listens with this key from now on.
  void promote(const Fingerprint& fingerprint);
  /// Proposes the retirement of a key. An error if the key is unknown, the only one, or the one listened with.
  [[nodiscard]] std::expected<RetiredKey, std::string> propose_retirement(const Fingerprint& fingerprint,
                                                                          TimeUs time_of_day) const;
  /// Retires a key. An error in the same cases.
  [[nodiscard]] std::expected<void, std::string> retire(const RetiredKey& key);

 private:
  KeyRing() = default;
  void forget_other_signatures();
  [[nodiscard]] bool is_retired(const Fingerprint& fingerprint) const;
  [[nodiscard]] RingKey* find(const Fingerprint& fingerprint);
  void revive_newest_if_none_is_left(const RingState& heard, TimeUs time_of_day, Merge& merge);
  [[nodiscard]] std::optional<Refusal> merge_key(const RingKey& heard, TimeUs time_of_day, Merge& merge);
  [[nodiscard]] std::optional<Refusal> merge_retired(const RetiredKey& heard, TimeUs time_of_day, Merge& merge);
  [[nodiscard]] std::optional<Refusal> merge_rule(const AdmissionRule& heard, TimeUs time_of_day, Merge& merge);
  [[nodiscard]] std::optional<Refusal> merge_deputy(const Deputy& heard, TimeUs time_of_day, Merge& merge);
  template <class Item>
  [[nodiscard]] std::optional<Refusal> flaw_of(const Item& heard, Merge& merge) const;
  template <class Item>
  [[nodiscard]] std::optional<Refusal> objection_to(const Item& heard, Merge& merge) const;
  enum class Put { taken, known, no_room };
  Put put_deputy(const Deputy& deputy);
  [[nodiscard]] bool holds(const Deputy& deputy) const;
  /// Remembers that the operator has dropped the authority here. Only the latest max_dropped_authorities are
  /// remembered.
  void drop(const PublicKey& authority);
  [[nodiscard]] bool has_dropped(const PublicKey& authority) const;
  /// Follows the authority from now on if this node follows none and has not dropped it.
  bool follow(const std::optional<PublicKey>& heard);
  void drop_retired();
  void drop_one_not_signed();
  void remember_retired(const RetiredKey& key);

  std::vector<RingKey> keys_;
  std::vector<RetiredKey> retired_;
  std::optional<Deciders> deciders_;
  std::vector<PublicKey> dropped_;  ///< authorities that the operator has dropped here, at most max_dropped_authorities
  std::optional<AdmissionRule> rule_;
};

}  // namespace gossamer::peer
