#include "tools/sim/hunt/overlay_oracle.hpp"

namespace gossamer::sim {

void OverlayOracle::look() {
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    for (std::size_t j = i + 1; j < cluster_.size(); ++j)
      look_at_link(i, j);
  }
  settle();
}

OverlayOracle::View& OverlayOracle::view(std::size_t i, std::size_t j) {
  View& view = views_[{i, j}];
  const std::uint64_t own_life = cluster_.node(i).daemon_life;
  if (view.own_life != own_life) view = {.own_life = own_life};  // a new daemon knows nobody
  return view;
}

bool OverlayOracle::keeps_link(std::size_t i, std::size_t j, bool /*reach*/) {
  view(i, j).lost_us = view(j, i).lost_us = schedule_.now_us();
  return true;
}

void OverlayOracle::apart(std::size_t i, std::size_t j) {
  suspect(i, j);
  suspect(j, i);
}

void OverlayOracle::meet(std::size_t i, std::size_t j) {
  View& known = view(i, j);
  const std::uint64_t life = cluster_.node(j).daemon_life;
  if (known.life != 0 && known.life != life && !known.dead) declare_dead(i, j);
  known = {.own_life = known.own_life, .life = life, .dead = false, .lost_us = schedule_.now_us()};
}

/// Node i judges node j, to which it has no link.
void OverlayOracle::suspect(std::size_t i, std::size_t j) {
  if (!cluster_.daemon_alive(i)) return;
  View& known = view(i, j);
  if (cluster_.node(i).paused) {
    known.lost_us = schedule_.now_us();  // a paused node's failure detector stands still, too
    return;
  }
  if (known.life == 0 || known.dead || schedule_.now_us() - known.lost_us < times_.dead_after_us) return;
  declare_dead(i, j);
}

void OverlayOracle::declare_dead(std::size_t i, std::size_t j) {
  view(i, j).dead = true;
  if (cluster_.node(j).daemon_life == view(i, j).life) ++deaths_;
  cluster_.declare_dead(i, j);
}

void OverlayOracle::said_goodbye(std::size_t i) {
  for (std::size_t j = 0; j < cluster_.size(); ++j) {
    if (j == i || !cluster_.daemon_alive(j) || !network_.connected(i, j)) continue;
    if (View& known = view(j, i); known.life != 0 && !known.dead) declare_dead(j, i);
  }
}

/// A joining node may decide once it has a link to every node that it can reach.
void OverlayOracle::settle() {
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (cluster_.node(i).all_dialled || !cluster_.daemon_alive(i)) continue;
    bool all = true;
    for (std::size_t j = 0; j < cluster_.size() && all; ++j) {
      const bool could = j != i && reachable(i, j) && network_.can_link(i, j);
      all = !could || cluster_.linked(i, j);
    }
    if (all) cluster_.set_all_dialled(i, true);
  }
}

}  // namespace gossamer::sim
