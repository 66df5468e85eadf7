// The addresses of members, kept in the state folder: a node that is restarted finds its cluster again through any of
// them, also where its configured contacts are gone, or it has none because it was the first, and even if its own
// address has changed meanwhile.
//
// Hints, like configured peers: who answers there has to prove that it holds the cluster key. Called at start and, now
// and then, from the loop's thread; store() of the state folder blocks for as long as the disk does, and is called only
// when something has changed; the caller looks once in keep_interval_us. A file that cannot be read or written is
// warned of.

#pragma once

#include <spdlog/logger.h>

#include <string>
#include <vector>

#include "daemon/state_folder.hpp"
#include "gossip/types.hpp"

namespace gossamer::daemon {

/// Addresses kept; those of a larger cluster are a part of it.
inline constexpr std::size_t max_acquaintances = 32;
inline constexpr TimeUs keep_interval_us = 5 * us_per_s;

class Acquaintances {
 public:
  /// Reads what an earlier life has kept. `state` and `log` outlive it.
  Acquaintances(const StateFolder& state, spdlog::logger& log);

  /// tcp://HOST:PORT each.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return kept_; }
  /// Keeps the first max_acquaintances of these, if they are others than before. Nobody to keep leaves what there is:
  /// whoever is alone now still wants to know whom it knew.
  void keep(std::vector<std::string> addresses);

 private:
  const StateFolder& state_;
  spdlog::logger& log_;
  std::vector<std::string> kept_;
};

}  // namespace gossamer::daemon
