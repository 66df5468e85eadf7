// Who has links and who is dead, for a Cluster, decided from what its network lets through. Two ways to decide it: by
// the network's own state (overlay_oracle.hpp), or by the shipped membership (overlay_membership.hpp).
//
// A scenario starts it when the first daemons run; from then on it looks at the daemons by itself. One thread.

#pragma once

#include <functional>
#include <map>
#include <string>

#include "tools/sim/cluster.hpp"

namespace gossamer::sim {

class HuntOverlay {
 public:
  explicit HuntOverlay(Cluster& cluster, Network& network, Schedule& schedule)
      : cluster_(cluster), network_(network), schedule_(schedule) {}
  HuntOverlay(const HuntOverlay&) = delete;
  HuntOverlay& operator=(const HuntOverlay&) = delete;
  virtual ~HuntOverlay() = default;

  /// Looks once, and goes on looking.
  virtual void begin() = 0;
  /// Node i's daemon has ended with a goodbye.
  virtual void said_goodbye(std::size_t i) = 0;
  /// What is still not as it should be when nothing has disturbed for long; empty if all is.
  [[nodiscard]] virtual std::string missing() const { return {}; }
  /// Whether links are to some of the others only.
  [[nodiscard]] virtual bool partial() const { return false; }
  /// Nodes are declared dead that were not known to have ended.
  [[nodiscard]] std::uint64_t deaths() const { return deaths_; }

  /// Two nodes were found without a working way between them (or one standing still), though both are there.
  std::function<void(std::size_t, std::size_t)> on_apart;
  /// What it has decided, in words.
  std::function<void(const std::string&)> on_decided;

 protected:
  [[nodiscard]] bool reachable(std::size_t i, std::size_t j) const {
    return cluster_.daemon_alive(i) && cluster_.daemon_alive(j) && !cluster_.node(i).paused &&
           !cluster_.node(j).paused && network_.connected(i, j) && network_.connected(j, i);
  }
  [[nodiscard]] bool can_link(std::size_t i, std::size_t j) const {
    return network_.can_dial(i, j) || network_.can_dial(j, i);
  }

  Cluster& cluster_;
  Network& network_;
  Schedule& schedule_;
  std::uint64_t deaths_ = 0;
};

}  // namespace gossamer::sim
