#include "tools/sim/hunt/overlay.hpp"

#include "tools/sim/draw.hpp"

namespace gossamer::sim {

namespace {

constexpr TimeUs overlay_look_us = 20'000;  // how often the overlay looks

}  // namespace

void HuntOverlay::begin() {
  look();
  schedule_.after(overlay_look_us, [this] { begin(); });
}

void HuntOverlay::look_at_link(std::size_t i, std::size_t j) {
  const TimeUs now_us = schedule_.now_us();
  const Pair pair(i, j);
  const bool both = cluster_.daemon_alive(i) && cluster_.daemon_alive(j);
  const bool reach = reachable(i, j);
  if (both && (!reach || !cluster_.linked(i, j)) && on_apart) on_apart(i, j);
  if (cluster_.linked(i, j)) {
    if (reach) heard_us_[pair] = now_us;
    const bool silent = now_us - heard_us_[pair] >= times_.link_timeout_us;
    if (!silent && keeps_link(i, j, reach)) return;
    cluster_.unlink(i, j);
    wait_before_dialling(pair);
  }
  apart(i, j);
  if (!reach || now_us < redial_us_[pair] || !may_link(i, j)) return;
  meet(i, j);
  meet(j, i);
  heard_us_[pair] = now_us;
  wait_before_dialling(pair);  // it counts when the link breaks
  cluster_.link(i, j);
}

void HuntOverlay::wait_before_dialling(const Pair& pair) {
  redial_us_[pair] = schedule_.now_us() + between(random_, times_.redial_us, 2 * times_.redial_us);
}

}  // namespace gossamer::sim
