// The results of gossamer-bench exchange, as text for a terminal or as JSON. Main thread.

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/bench/kernels.hpp"
#include "tools/bench/link.hpp"
#include "tools/bench/raw_zeromq.hpp"

namespace gossamer::bench {

/// CPU time of daemons by the threads that used it.
struct DaemonTime {
  double loop = 0;
  double workers = 0;
  double io = 0;  ///< ZeroMQ's threads
};

/// Each vector holds a number for each round; numbers at the same index were measured in turn.
struct ExchangeResults {
  std::size_t elements = 0;
  Codec codec = Codec::q8;
  std::vector<double> model_rates;    ///< bytes of model a second
  std::vector<double> payload_rates;  ///< bytes of payload a second, both directions together
  std::vector<LinkRun> links;
  std::vector<Transport> raw, raw_plain;       ///< with CURVE and without
  std::vector<DaemonTime> daemon_ns_per_byte;  ///< of both daemons together, for each byte of payload
  KernelCosts kernels;
  double wide_fraction = 0;  ///< share of the blocks
  double busy_fraction = 0;  ///< share of the requests
  double unresolved = 0;

  /// The bytes of one fragment that a request or a reply carries.
  [[nodiscard]] std::size_t message_bytes() const {
    return default_fragment_elements / block_elements * codec_block_bytes(codec);
  }
};

[[nodiscard]] nlohmann::json to_json(const ExchangeResults& results);
[[nodiscard]] std::string text_of(const ExchangeResults& results);

}  // namespace gossamer::bench
