// Links and deaths as peer/overlay/overlay.hpp makes them, from what the simulated network lets through. Two nodes that
// can reach each other get a link, and silence ends it. A node without a link for long enough is dead to those who had
// one. Each end judges for itself, so they may differ. A daemon that comes back is another life of its node: nodes that
// still knew the former life are told of its death first.
//
// It does not simulate the time that a heartbeat needs. One thread.

#pragma once

#include "tools/sim/hunt/overlay.hpp"

namespace gossamer::sim {

struct OracleOptions {
  TimeUs look_us = 20'000;           ///< how often it looks
  TimeUs link_timeout_us = 200'000;  ///< silence that ends a link
  TimeUs dead_after_us = 300'000;    ///< after the loss of the link
  TimeUs redial_us = 50'000;         ///< the least time before dialling again; at most twice this
};

class OverlayOracle final : public HuntOverlay {
 public:
  OverlayOracle(OracleOptions options, Cluster& cluster, Network& network, Schedule& schedule, std::uint64_t seed);

  void begin() override;
  void said_goodbye(std::size_t i) override;

 private:
  /// A node's knowledge of another, kept while the node's own life lasts.
  struct View {
    std::uint64_t own_life = 0;  ///< the life of the daemon that knows this
    std::uint64_t life = 0;      ///< the other's life at the last link; 0: never linked
    bool dead = false;
    TimeUs lost_us = 0;  ///< when the link was lost, or when the node itself went on, if later
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
  std::map<std::pair<std::size_t, std::size_t>, TimeUs> redial_us_;  ///< i < j, while not linked
};

}  // namespace gossamer::sim
