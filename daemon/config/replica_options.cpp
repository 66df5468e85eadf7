#include "daemon/config/replica_options.hpp"

namespace gossamer::daemon {

gossip::ReplicaOptions replica_options(const GossipOptions& options) {
  const bool automatic = options.codec == CodecChoice::automatic;
  return {.codec = automatic ? Codec::q8 : static_cast<Codec>(options.codec),
          .adapt_codec = automatic,
          .period_us = options.period_ms * us_per_ms,
          .in_flight = static_cast<std::size_t>(options.in_flight),
          .mixing_budget = static_cast<float>(options.mixing_budget),
          .lifetime_us = options.exchange_lifetime_ms * us_per_ms,
          .range = static_cast<float>(options.range),
          .weigh_samples = options.weights == Weights::samples,
          .outer = {.momentum = static_cast<float>(options.outer_momentum),
                    .period_us = options.outer_period_ms * us_per_ms},
          .partners = {.policy =
                           options.method == layout::Method::server ? gossip::PartnerPolicy::owner : options.partners},
          .bytes_per_s = options.max_mbit_s * bytes_per_mbit,
          .link_bytes_per_s = options.link_max_mbit_s * bytes_per_mbit,
          .time_share = options.time_share,
          .network_share = options.bandwidth_share,
          .exchanges = options.method != layout::Method::average,
          .clip = static_cast<float>(options.clip),
          .dense_clip = static_cast<float>(options.dense_clip),
          .clock_pace = static_cast<std::uint64_t>(options.clock_pace)};
}

}  // namespace gossamer::daemon
