// The secrets of a link's bulk connection, where bulk is sealed (peer/links/seal.hpp).
//
// Both ends make them from what the control connection has told inside CURVE: the dialler's hello with its nonce, the
// welcome, and the listener's offer with another nonce. So they are fresh for each link at both ends, and are not found
// again from long-lived keys. Pure, any thread.
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
  /// The name and password with which the connection is let in (ZeroMQ's PLAIN), once. They go over the network in the
  /// clear. Whoever takes them from there opens and seals nothing.
  std::string ticket_name;
  std::string ticket_password;
};

/// `own` is the node key of either end. Nothing if the other key is none that secrets can be shared with.
[[nodiscard]] std::optional<BulkKeys> bulk_keys(const KeyPair& own, const Hello& hello, const Welcome& welcome,
                                                const BulkOffer& offer);

}  // namespace gossamer::peer
