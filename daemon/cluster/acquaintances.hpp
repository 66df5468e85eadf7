// The addresses of members, kept in the state folder: a node that is restarted finds its cluster again through any of
// them, also where its configured contacts are gone, or it has none because it was the first, and even if its own
// address has changed meanwhile.
//
// Hints, like configured peers: who answers there has to prove that it holds the cluster key. Called at start and, now
// and then, from the loop's thread; the file is written by the disk's thread, and only when something has changed; the
// caller looks once in keep_interval_us. A file that cannot be read or written is warned of. Invariant: at most one
// writing is under way; what changes meanwhile is written by the next keep() after it.

#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/system/state_folder.hpp"
#include "daemon/system/workers.hpp"
#include "gossip/types.hpp"

namespace gossamer::daemon {

/// Addresses kept; those of a larger cluster are a part of it.
inline constexpr std::size_t max_acquaintances = 32;
inline constexpr TimeUs keep_interval_us = 5 * us_per_s;

class Acquaintances {
 public:
  /// Reads what an earlier life has kept. All outlive it, and `state` the tasks of `disk`.
  Acquaintances(const StateFolder& state, Workers& disk, spdlog::logger& log);

  /// tcp://HOST:PORT each.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return kept_; }
  /// Keeps the first max_acquaintances of these, if they are others than before. Nobody to keep leaves what there is:
  /// whoever is alone now still wants to know whom it knew.
  void keep(std::vector<std::string> addresses);

 private:
  const StateFolder& state_;
  Workers& disk_;
  spdlog::logger& log_;
  std::vector<std::string> kept_;
  std::shared_ptr<bool> writing_ = std::make_shared<bool>(false);
};

}  // namespace gossamer::daemon
