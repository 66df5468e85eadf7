// Decides for a Cluster who has links and who is dead, from what its network lets through. There are two ways: by the
// network's own state (overlay_oracle.hpp), or by the shipped membership (overlay_membership.hpp).
//
// Both handle links in the same way: a link is made if the decisions allow it and one of the nodes can dial, and long
// silence ends it. A scenario starts the overlay with the first daemons; from then on it watches the daemons by itself.
// One thread.

#pragma once

#include <functional>
#include <map>
#include <string>

#include "tools/sim/cluster.hpp"

namespace gossamer::sim {

/// How soon a silent link ends, and how soon it can be made again.
struct OverlayTimes {
  TimeUs link_timeout_us = 200'000;  ///< silence that ends a link
  TimeUs dead_after_us = 300'000;    ///< from the loss of the link to death; the membership has its own time
  TimeUs redial_us = 50'000;         ///< the least time before dialling again; at most twice this
};

class HuntOverlay {
 public:
  HuntOverlay(const OverlayTimes& times, Cluster& cluster, Network& network, Schedule& schedule, std::uint64_t seed)
      : times_(times), cluster_(cluster), network_(network), schedule_(schedule), random_(seed) {}
  HuntOverlay(const HuntOverlay&) = delete;
  HuntOverlay& operator=(const HuntOverlay&) = delete;
  virtual ~HuntOverlay() = default;

  /// Looks at the daemons once, and goes on looking.
  void begin();
  /// Node i's daemon has ended with a goodbye.
  virtual void said_goodbye(std::size_t i) = 0;
  /// A text about what is still wrong after a long time without faults; empty if nothing is.
  [[nodiscard]] virtual std::string missing() const { return {}; }
  /// True if nodes have links to only some of the others.
  [[nodiscard]] virtual bool partial() const { return false; }
  /// How often a node was declared dead although it was not known to have ended.
  [[nodiscard]] std::uint64_t deaths() const { return deaths_; }

  /// Called when two living nodes cannot reach each other, or one of them stands still.
  std::function<void(std::size_t, std::size_t)> on_apart;
  /// Called with each decision, in words.
  std::function<void(const std::string&)> on_decided;

 protected:
  /// Looks at all daemons and, with look_at_link(), at their links.
  virtual void look() = 0;
  /// True if the link of i and j stays although it is silent for a short time. `reach`: they can reach each other.
  virtual bool keeps_link(std::size_t i, std::size_t j, bool reach) = 0;
  /// i and j have no link.
  virtual void apart(std::size_t i, std::size_t j) = 0;
  /// True if i and j may make a link, and one of them can dial.
  [[nodiscard]] virtual bool may_link(std::size_t i, std::size_t j) const = 0;
  /// i and j are about to be linked, and i learns the present life of j.
  virtual void meet(std::size_t i, std::size_t j) = 0;

  /// Ends or makes the link of i and j; i < j.
  void look_at_link(std::size_t i, std::size_t j);
  [[nodiscard]] bool reachable(std::size_t i, std::size_t j) const {
    return cluster_.daemon_alive(i) && cluster_.daemon_alive(j) && !cluster_.node(i).paused &&
           !cluster_.node(j).paused && network_.connected(i, j) && network_.connected(j, i);
  }

  const OverlayTimes times_;
  Cluster& cluster_;
  Network& network_;
  Schedule& schedule_;
  gossip::Random random_;
  std::uint64_t deaths_ = 0;

 private:
  using Pair = std::pair<std::size_t, std::size_t>;  ///< the smaller number first

  void wait_before_dialling(const Pair& pair);

  std::map<Pair, TimeUs> heard_us_;   ///< while linked: when the link was last heard
  std::map<Pair, TimeUs> redial_us_;  ///< while not linked: the earliest time to dial again
};

}  // namespace gossamer::sim
