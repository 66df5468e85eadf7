// The secrets of a link's bulk connection, where bulk is sealed (peer/links/seal.hpp).
//
// Both ends make them from what the control connection has told inside CURVE: the dialler's hello with its nonce, the
// welcome, and the listener's offer with another nonce. So the secrets are fresh for each link, and cannot be found
// later from the long-lived keys alone. Pure, any thread.
//
//   master    BLAKE2b-256, keyed with the X25519 secret that the two node keys share, over both keys, both nonces, the
//             link's number and what features each end has named
//   secrets   BLAKE2b-256, keyed with the master, over a name for each

#pragma once

#include <optional>
#include <string>

#include "peer/admission/admission.hpp"

namespace gossamer::peer {

struct BulkKeys {
  Secret to_listener;  ///< seals what the dialler sends
  Secret to_dialler;
  /// The name and password that let the connection in, once (ZeroMQ's PLAIN). They cross the network in the clear.
  /// Whoever reads them there can neither open nor seal messages.
  std::string ticket_name;
  std::string ticket_password;
};

/// `own` is the node key of either end. Nothing if no secret can be shared with the key of the other end.
[[nodiscard]] std::optional<BulkKeys> bulk_keys(const KeyPair& own, const Hello& hello, const Welcome& welcome,
                                                const BulkOffer& offer);

}  // namespace gossamer::peer
