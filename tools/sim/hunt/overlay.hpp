// Decides for a Cluster who has links and who is dead, from what its network lets through. There are two ways: by the
// network's own state (overlay_oracle.hpp), or by the shipped membership (overlay_membership.hpp).
//
// A scenario starts it with the first daemons; from then on it watches the daemons by itself. One thread.

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

  /// Looks at the daemons once, and goes on looking.
  virtual void begin() = 0;
  /// Node i's daemon has ended with a goodbye.
  virtual void said_goodbye(std::size_t i) = 0;
  /// A text about what is still wrong after a long time without faults; empty if nothing is.
  [[nodiscard]] virtual std::string missing() const { return {}; }
  /// True if nodes have links to only some of the others.
  [[nodiscard]] virtual bool partial() const { return false; }
  /// How many times a node was declared dead that was not known to have ended.
  [[nodiscard]] std::uint64_t deaths() const { return deaths_; }

  /// Called when two nodes have no working way between them, or one stands still, though both are alive.
  std::function<void(std::size_t, std::size_t)> on_apart;
  /// Called with each decision, in words.
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
