// Holds the cluster keys that a node accepts, when each was made, which are retired, and which one it listens with.
//
// The ring grows by rotate() and shrinks by retire(), is told to every member and merged there. A retired key never
// comes back, a key is known by its fingerprint, and the newest becomes the one to listen with when the neighbours hold
// it, too (peer/admission/spread.hpp decides when). Owned by the overlay's Spread, on its thread; pure, but for the
// random bytes of a new key: the time of day is an argument. Invariants: 1 to max_cluster_keys keys, all different,
// none of them retired; at most max_retired_keys retired ones. The secrets are in the operator's key file, what is
// known about them in the state folder (notes()).

#pragma once

#include "peer/wire/control_messages.hpp"

namespace gossamer::peer {

class KeyRing {
 public:
  /// A ring of keys of which nothing else is known.
  KeyRing(const ClusterKeys& keys);  // NOLINT(google-explicit-constructor)
  /// Keys from a file, and the notes about them. Retired ones are left out; an error if no other is left.
  [[nodiscard]] static std::expected<KeyRing, std::string> restore(const ClusterKeys& keys, std::string_view notes);
  /// What a member gives to a node that joins. An error if it makes no sense.
  [[nodiscard]] static std::expected<KeyRing, std::string> adopt(const RingState& state);

  /// The key to listen with.
  [[nodiscard]] const RingKey& first() const { return keys_.front(); }
  [[nodiscard]] std::span<const RingKey> keys() const { return keys_; }
  [[nodiscard]] ClusterKeys cluster_keys() const;
  [[nodiscard]] RingState state() const { return {keys_, retired_}; }
  /// The text for the state folder has one line for each key, and no secrets.
  [[nodiscard]] std::string notes() const;
  [[nodiscard]] bool holds(const Fingerprint& fingerprint) const;
  /// The key made last, if it is newer than the one listened with.
  [[nodiscard]] std::optional<Fingerprint> successor() const;

  struct Merge {
    bool changed = false;
    bool refused = false;  ///< something was dated too far ahead, or there was no room
  };
  /// Takes what another member holds. If the key that we listen with is retired, its successor takes its place. If
  /// every key is retired, the newest stays.
  [[nodiscard]] Merge merge(const RingState& heard, TimeUs time_of_day);
  /// Adds a new key, as the last to be tried. An error if the ring is full.
  [[nodiscard]] std::expected<Fingerprint, std::string> rotate(TimeUs time_of_day);
  /// Listens with this key from now on.
  void promote(const Fingerprint& fingerprint);
  /// An error if it is unknown, the only one, or the one listened with.
  [[nodiscard]] std::expected<void, std::string> retire(const Fingerprint& fingerprint, TimeUs time_of_day);

 private:
  KeyRing() = default;
  [[nodiscard]] bool is_retired(const Fingerprint& fingerprint) const;
  [[nodiscard]] RingKey* find(const Fingerprint& fingerprint);
  void revive_newest_if_none_is_left(const RingState& heard, TimeUs time_of_day);
  bool merge_key(const RingKey& heard, TimeUs time_of_day);
  void drop_retired();
  void remember_retired(const RetiredKey& key);

  std::vector<RingKey> keys_;
  std::vector<RetiredKey> retired_;
};

}  // namespace gossamer::peer
