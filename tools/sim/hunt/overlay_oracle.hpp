// Links and deaths as peer/overlay/overlay.hpp makes them, from what the simulated network lets through: two nodes that
// can reach each other get a link, silence ends it, and a node without a link for long enough is dead to those who had
// one. Each end judges for itself, so one may think the other dead that thinks it alive. A daemon that comes back is
// another life of its node: whoever still knew the one before is told of its death first.
//
// What it does not take from the network is the time a heartbeat needs. One thread.

#pragma once

#include "tools/sim/hunt/overlay.hpp"

namespace gossamer::sim {

struct OracleOptions {
  TimeUs look_us = 20'000;           ///< how often it looks
  TimeUs link_timeout_us = 200'000;  ///< silence that ends a link
  TimeUs dead_after_us = 300'000;    ///< from the loss of the link
  TimeUs redial_us = 50'000;         ///< and up to twice that
};

class OverlayOracle final : public HuntOverlay {
 public:
  OverlayOracle(OracleOptions options, Cluster& cluster, Network& network, Schedule& schedule, std::uint64_t seed);

  void begin() override;
  void said_goodbye(std::size_t i) override;

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
  void settle();

  OracleOptions options_;
  gossip::Random random_;
  std::map<std::pair<std::size_t, std::size_t>, View> views_;
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> heard_us_;   ///< i < j, while linked
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> redial_us_;  ///< i < j, while not
};

}  // namespace gossamer::sim
