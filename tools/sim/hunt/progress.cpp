#include "tools/sim/hunt/progress.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

namespace gossamer::sim {

namespace {

using Kind = Cluster::Event::Kind;

constexpr TimeUs looks_in_bound = 64;

}  // namespace

ProgressOracle::ProgressOracle(const Cluster& cluster, const Network& network, const gossip::ReplicaOptions& options,
                               TimeUs bound_us)
    : cluster_(cluster), network_(network), options_(options), bound_us_(bound_us) {}

void ProgressOracle::on(const Cluster::Event& event) {
  grow();
  switch (event.kind) {
    case Kind::answered:
    case Kind::concluded:
      if (event.done) nodes_[event.node].exchanged_us[event.fragment] = cluster_.now_us();
      return;
    case Kind::client_began:
      return set_finite(event.node, true);
    case Kind::linked:
    case Kind::unlinked:
    case Kind::dead:
      joined_since_us_[std::minmax(event.node, event.other)] = cluster_.now_us();
      return;
    case Kind::turned:
      if (cluster_.now_us() < next_look_us_) return;
      next_look_us_ = cluster_.now_us() + bound_us_ / looks_in_bound;
      return look();
    default:
      return;
  }
}

void ProgressOracle::set_finite(std::size_t i, bool finite) {
  grow();
  nodes_[i].finite = finite;
  nodes_[i].well_since_us = cluster_.now_us();
}

void ProgressOracle::grow() {
  while (nodes_.size() < cluster_.size())
    nodes_.push_back({.exchanged_us = std::vector<TimeUs>(cluster_.fragments())});
}

bool ProgressOracle::well(std::size_t i) const {
  const Cluster::Node& node = cluster_.node(i);
  return nodes_[i].finite && node.replica && node.replica->state() == ReplicaState::running && !node.paused &&
         node.client.alive && !node.client.stalled;
}

/// A node that keeps the job, and owns nothing of it, follows only nodes that train.
bool ProgressOracle::are_partners(std::size_t i, std::size_t j) const {
  const bool one_keeps = cluster_.node(i).keeps || cluster_.node(j).keeps;
  if (!one_keeps) return options_.exchanges;
  const bool both_keep = cluster_.node(i).keeps && cluster_.node(j).keeps;
  return !both_keep || options_.partners.policy == gossip::PartnerPolicy::owner;
}

bool ProgressOracle::joined(std::size_t i, std::size_t j) const {
  return are_partners(i, j) && cluster_.linked(i, j) && network_.connected(i, j) && network_.connected(j, i);
}

void ProgressOracle::look() {
  const TimeUs now_us = cluster_.now_us();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    NodeState& state = nodes_[i];
    const std::uint64_t life = cluster_.node(i).replica_life;
    if (!well(i) || std::exchange(state.replica_life, life) != life) state.well_since_us = now_us;
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    for (std::size_t j = i + 1; j < nodes_.size(); ++j)
      look_at(i, j);
  }
}

void ProgressOracle::look_at(std::size_t i, std::size_t j) {
  TimeUs& joined_since_us = joined_since_us_[{i, j}];
  if (!joined(i, j)) joined_since_us = cluster_.now_us();
  const TimeUs since_us = std::max({joined_since_us, nodes_[i].well_since_us, nodes_[j].well_since_us});
  look_at(i, j, since_us);
  look_at(j, i, since_us);
}

/// Checks node i, which has had node j as a healthy partner since that time.
void ProgressOracle::look_at(std::size_t i, std::size_t j, TimeUs since_us) {
  if (cluster_.node(j).follows) return;                        // it gives nothing
  if (!options_.exchanges && !cluster_.node(i).keeps) return;  // a keeper need not follow this node
  for (std::uint32_t f = 0; f < cluster_.fragments(); ++f) {
    const TimeUs waited_us = cluster_.now_us() - std::max(since_us, nodes_[i].exchanged_us[f]);
    longest_us_ = std::max(longest_us_, waited_us);
    if (waited_us <= bound_us_) continue;
    throw Violation({.node = i, .other = j, .fragment = f},
                    "progress: node {} has exchanged fragment {} with nobody for {} us (at most {} are "
                    "allowed) though it and node {} were well and linked all the time",
                    i, f, waited_us, bound_us_, j);
  }
}

}  // namespace gossamer::sim
