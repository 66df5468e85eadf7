// The computation of an exchange, as the workers of two daemons do it: EncodeTask at the initiator, AnswerTask at the
// responder, ConcludeTask at the initiator (gossip/exchange/exchange.hpp). They run one after the other on the calling
// thread, over models larger than the caches.

#pragma once

#include "gossip/types.hpp"

namespace gossamer::bench {

/// CPU time in nanoseconds for each byte of payload in one direction.
struct KernelCosts {
  double encode_ns_per_byte = 0;
  double answer_ns_per_byte = 0;
  double conclude_ns_per_byte = 0;
};

/// Medians over the fragments of a few rounds.
[[nodiscard]] KernelCosts kernel_costs(Codec codec);

}  // namespace gossamer::bench
