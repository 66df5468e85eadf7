// The addresses of members, kept in the state folder. After a restart a node finds its cluster again through any of
// them, even where its configured contacts are gone, where it has none because it was the first, or where its own
// address has changed.
//
// The addresses are hints, like configured peers: whoever answers there has to prove that it holds the cluster key. The
// file is read at start, on the loop's thread. The disk's thread writes it, but only when something has changed; the
// caller calls keep() every keep_interval_us. A file that cannot be read or written is warned of. Invariant: at most
// one writing is under way; changes meanwhile are written by the next keep() after it.

#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/system/state_folder.hpp"
#include "daemon/system/workers.hpp"
#include "gossip/types.hpp"

namespace gossamer::daemon {

/// This many addresses are kept; a larger cluster is kept in part.
inline constexpr std::size_t max_acquaintances = 32;
inline constexpr TimeUs keep_interval_us = 5 * us_per_s;

class Acquaintances {
 public:
  /// Reads what an earlier life of the node has kept. All references outlive this object, and `state` outlives the
  /// tasks of `disk`.
  Acquaintances(const StateFolder& state, Workers& disk, spdlog::logger& log);

  /// Each is tcp://HOST:PORT.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return kept_; }
  /// Keeps the first max_acquaintances of these addresses if they have changed. An empty list changes nothing: a node
  /// that is alone now still wants to find the members it knew.
  void keep(std::vector<std::string> addresses);

 private:
  const StateFolder& state_;
  Workers& disk_;
  spdlog::logger& log_;
  std::vector<std::string> kept_;
  std::shared_ptr<bool> writing_ = std::make_shared<bool>(false);
};

}  // namespace gossamer::daemon
