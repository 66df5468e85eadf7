// Links and deaths as peer/overlay/overlay.hpp makes them, from what the simulated network lets through. Two nodes that
// can reach each other get a link, and silence ends it. A node whose link is lost for long enough is dead for the node
// that had the link. Each end judges for itself, so they may differ. A daemon that comes back is another life of its
// node: nodes that still knew the former life are told of its death first.
//
// It does not simulate the time that a heartbeat needs. One thread.

#pragma once

#include "tools/sim/hunt/overlay.hpp"

namespace gossamer::sim {

class OverlayOracle final : public HuntOverlay {
 public:
  using HuntOverlay::HuntOverlay;

  void said_goodbye(std::size_t i) override;

 private:
  /// A node's knowledge of another, kept while the node's own life lasts.
  struct View {
    std::uint64_t own_life = 0;  ///< the life of the daemon that knows this
    std::uint64_t life = 0;      ///< the other's life at the last link; 0: never linked
    bool dead = false;
    TimeUs lost_us = 0;  ///< when the link was lost, or when this node went on after a pause, if that is later
  };
  void look() override;
  bool keeps_link(std::size_t i, std::size_t j, bool reach) override;
  void apart(std::size_t i, std::size_t j) override;
  [[nodiscard]] bool may_link(std::size_t i, std::size_t j) const override { return network_.can_link(i, j); }
  void meet(std::size_t i, std::size_t j) override;
  void suspect(std::size_t i, std::size_t j);
  void declare_dead(std::size_t i, std::size_t j);
  View& view(std::size_t i, std::size_t j);
  void settle();

  std::map<std::pair<std::size_t, std::size_t>, View> views_;
};

}  // namespace gossamer::sim
