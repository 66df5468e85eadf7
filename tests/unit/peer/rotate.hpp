// Changes of a key ring, in one step each.

#pragma once

#include "peer/admission/key_ring.hpp"

namespace gossamer::peer {

/// Makes a key as an operator's `key rotate` does. The ring listens with it once it is promoted.
[[nodiscard]] inline std::expected<Fingerprint, std::string> rotate(KeyRing& ring, TimeUs time_of_day) {
  const auto key = ring.propose(time_of_day);
  if (!key) return std::unexpected(key.error());
  if (const auto added = ring.add(*key); !added) return std::unexpected(added.error());
  return key->key.fingerprint();
}

[[nodiscard]] inline std::expected<void, std::string> retire(KeyRing& ring, const Fingerprint& fingerprint,
                                                             TimeUs time_of_day) {
  const auto retired = ring.propose_retirement(fingerprint, time_of_day);
  if (!retired) return std::unexpected(retired.error());
  return ring.retire(*retired);
}

}  // namespace gossamer::peer
