// Links and deaths as peer/overlay.hpp makes them, from what the simulated network lets through: two nodes that can
// reach each other get a link, silence ends it, and a node without a link for long enough is dead to those who had one.
// Each end judges for itself, so one may think the other dead that thinks it alive. A daemon that comes back is another
// life of its node: whoever still knew the one before is told of its death first.
//
// What it does not take from the network is the time a heartbeat needs. One thread.

#pragma once

#include "tools/sim/cluster.hpp"

namespace gossamer::sim {

struct OracleOptions {
  TimeUs look_us = 20'000;           ///< how often it looks
  TimeUs link_timeout_us = 200'000;  ///< silence that ends a link
  TimeUs dead_after_us = 300'000;    ///< from the loss of the link
  TimeUs redial_us = 50'000;         ///< and up to twice that
};

class OverlayOracle {
 public:
  OverlayOracle(OracleOptions options, Cluster& cluster, Network& network, Schedule& schedule, std::uint64_t seed);

  /// Looks once, and goes on looking.
  void begin();
  /// Node i left with a goodbye: it is dead to its neighbours at once.
  void said_goodbye(std::size_t i);
  /// Two nodes were found without a working way between them (or one standing still), though both are there.
  std::function<void(std::size_t, std::size_t)> on_apart;
  /// Nodes are declared dead that were not known to have ended.
  [[nodiscard]] std::uint64_t deaths() const { return deaths_; }

 private:
  /// What one node knows of another; of its own present life.
  struct View {
    std::uint64_t own_life = 0;  ///< of the daemon that knows this
    std::uint64_t life = 0;      ///< of the other's daemon that it had a link to; 0: never
    bool dead = false;
    TimeUs lost_us = 0;  ///< when the link was lost, or later: when the node itself went on
  };
  void look();
  void look_at(std::size_t i, std::size_t j);
  void suspect(std::size_t i, std::size_t j);
  void declare_dead(std::size_t i, std::size_t j);
  View& view(std::size_t i, std::size_t j);
  [[nodiscard]] bool reachable(std::size_t i, std::size_t j) const;
  void settle();

  OracleOptions options_;
  Cluster& cluster_;
  Network& network_;
  Schedule& schedule_;
  gossip::Random random_;
  std::map<std::pair<std::size_t, std::size_t>, View> views_;
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> heard_us_;   ///< i < j, while linked
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> redial_us_;  ///< i < j, while not
  std::uint64_t deaths_ = 0;
};

}  // namespace gossamer::sim
