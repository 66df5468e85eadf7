#include "tools/sim/hunt/overlay_membership.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "tools/sim/draw.hpp"
#include "tools/sim/hunt/invariants.hpp"

namespace gossamer::sim {

namespace {

using gossip::Membership;
using Change = Membership::Change;

/// How many nodes others join through, besides the first node, which everybody can dial.
constexpr std::size_t more_contacts = 2;
constexpr double wrong_clocks = 0.1;                          // of the lives begin with a clock that is ahead
constexpr std::uint64_t clock_ahead = 2'300'000'000'000'000;  // 73 years in microseconds

}  // namespace

OverlayMembership::OverlayMembership(const gossip::MembershipOptions& options, const OverlayTimes& times,
                                     Cluster& cluster, Network& network, Schedule& schedule, std::uint64_t seed)
    : HuntOverlay(times, cluster, network, schedule, seed),
      options_(options),
      members_(schedule, network, options, random_.next()) {
  members_.on_event = [this](std::size_t node, const Membership::Event& event) { heard(node, event); };
}

void OverlayMembership::look() {
  lives_.resize(cluster_.size());
  while (members_.nodes() < cluster_.size())
    members_.add_node();
  for (std::size_t i = 0; i < cluster_.size(); ++i)
    follow(i);
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    for (std::size_t j = i + 1; j < cluster_.size(); ++j) {
      look_at_link(i, j);
      tell_of_link(i, j);
      tell_of_link(j, i);
    }
  }
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (!current(i)) continue;
    check_bounds(i);
    settle(i);
  }
}

// --- daemons ------------------------------------------------------------------------------------------------------

bool OverlayMembership::current(std::size_t i) const {
  return i < lives_.size() && members_.running(i) && cluster_.daemon_alive(i) &&
         lives_[i] == cluster_.node(i).daemon_life;
}

/// Starts, stops and ends the membership with its daemon.
void OverlayMembership::follow(std::size_t i) {
  if (members_.running(i) && !current(i)) members_.crash(i);
  if (!cluster_.daemon_alive(i)) return;
  if (!members_.running(i)) start(i);
  if (cluster_.node(i).paused == members_.paused(i)) return;
  if (members_.paused(i)) {
    members_.resume(i);
  } else {
    members_.pause(i);
  }
}

void OverlayMembership::start(std::size_t i) {
  lives_[i] = cluster_.node(i).daemon_life;
  std::erase_if(told_, [&](const auto& pair) { return pair.first == i; });
  std::vector<std::size_t> others;
  for (std::size_t j = 1; j < cluster_.size(); ++j) {
    if (j != i && !network_.behind_nat(j)) others.push_back(j);
  }
  random_.shuffle(others);
  others.resize(std::min(others.size(), more_contacts));
  if (i != 0) others.push_back(0);
  members_.start(i, others, chance(random_, wrong_clocks) ? clock_ahead : 0);
}

// --- links --------------------------------------------------------------------------------------------------------

bool OverlayMembership::wants(std::size_t i, std::size_t j) const {
  return current(i) && std::ranges::binary_search(members_.membership(i).view(), members_.id(j));
}

bool OverlayMembership::holds_dead(std::size_t i, std::size_t j) const {
  return current(i) && members_.membership(i).considers_gone(members_.id(j));
}

/// An end wants the link, and neither end holds the other dead.
bool OverlayMembership::wanted(std::size_t i, std::size_t j) const {
  return current(i) && current(j) && (wants(i, j) || wants(j, i)) && !holds_dead(i, j) && !holds_dead(j, i);
}

OverlayMembership::Peer& OverlayMembership::peer(std::size_t i, std::size_t j) {
  Peer& peer = peers_[{i, j}];
  if (peer.own_life != lives_[i]) peer = {.own_life = lives_[i]};
  return peer;
}

bool OverlayMembership::may_link(std::size_t i, std::size_t j) const {
  const bool dialled = (wants(i, j) && network_.can_dial(i, j)) || (wants(j, i) && network_.can_dial(j, i));
  return dialled && wanted(i, j);
}

void OverlayMembership::meet(std::size_t i, std::size_t j) {
  Peer& known = peer(i, j);
  if (known.life != 0 && known.life != lives_[j]) declare_dead(i, j);
  known.life = lives_[j];
}

/// Reads the link's state again, since others may have broken it.
void OverlayMembership::tell_of_link(std::size_t i, std::size_t j) {
  if (!current(i) || members_.paused(i)) return;
  const bool linked = cluster_.linked(i, j);
  if (linked == told_.contains({i, j})) return;
  if (linked) {
    told_.insert({i, j});
    members_.link_up(i, j);
  } else {
    told_.erase({i, j});
    members_.link_down(i, j);
  }
}

void OverlayMembership::heard(std::size_t i, const Membership::Event& event) {
  const std::size_t j = MembershipCluster::number(event.node);
  if (event.change != Change::died && event.change != Change::left) {
    if (event.change == Change::alive_again && on_decided) on_decided(fmt::format("node {} is back for node {}", j, i));
    return;
  }
  if (!current(i)) return;
  if (on_decided) {
    on_decided(fmt::format("node {} {} for node {}", j, event.change == Change::left ? "has left" : "is dead", i));
  }
  // If node j is a member again already, a former life of it died.
  if (current(j) && peer(i, j).life == lives_[j] && holds_dead(i, j)) ++deaths_;
  declare_dead(i, j);
  cluster_.unlink(i, j);
}

void OverlayMembership::declare_dead(std::size_t i, std::size_t j) {
  peer(i, j).life = 0;
  cluster_.declare_dead(i, j);
}

/// A joining node may decide once it has all links that it wants, and knows another node if it can reach any.
void OverlayMembership::settle(std::size_t i) {
  if (cluster_.node(i).all_dialled) return;
  bool alone = true;
  for (std::size_t j = 0; j < cluster_.size(); ++j) {
    if (j == i || !reachable(i, j) || !network_.can_link(i, j)) continue;
    alone = false;
    if (wanted(i, j) && !cluster_.linked(i, j)) return;
  }
  if (alone || !members_.membership(i).view().empty()) cluster_.set_all_dialled(i, true);
}

// --- judgements ---------------------------------------------------------------------------------------------------

void OverlayMembership::check_bounds(std::size_t i) const {
  const Membership& membership = members_.membership(i);
  const std::size_t most_members =
      std::max(membership.partial() ? gossip::most_neighbours : 0, options_.full_view_limit + 1);
  const auto check = [&](const char* what, std::size_t size, std::size_t most) {
    if (size <= most) return;
    throw Violation({.node = i}, "bounds: node {}'s membership has {} {}, of {} allowed", i, size, what, most);
  };
  check("members", membership.members().size(), most_members);
  check("links to keep", membership.view().size(), most_members + gossip::max_active_view);
  check("others in its passive view", membership.passive_view().size(), options_.passive_view);
  check("claims in mind", membership.heard().size(), gossip::max_heard);
  check("rumours to pass on", membership.queued_rumours(), gossip::max_queued_rumours);
}

bool OverlayMembership::partial() const {
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    if (current(i) && members_.membership(i).partial()) return true;
  }
  return false;
}

/// A text about what is wrong in node i's membership.
std::string OverlayMembership::missing_of(std::size_t i, std::size_t living) const {
  const Membership& membership = members_.membership(i);
  for (const Membership::Member& member : membership.members()) {
    const std::size_t j = MembershipCluster::number(member.record.node);
    if (!current(j)) return fmt::format("node {} has node {} as a member, which has ended", i, j);
    if (member.suspected) return fmt::format("node {} suspects node {}", i, j);
  }
  for (std::size_t j = 0; j < lives_.size(); ++j) {
    if (j == i || !current(j)) continue;
    if (holds_dead(i, j)) return fmt::format("node {} holds node {} to be dead", i, j);
    if (wants(i, j) && network_.can_link(i, j) && !cluster_.linked(i, j)) {
      return fmt::format("node {} has no link to node {}, of its view", i, j);
    }
  }
  if (!partial() && membership.members().size() + 1 < living) {
    return fmt::format("node {} knows {} others of {}", i, membership.members().size(), living - 1);
  }
  return {};
}

std::string OverlayMembership::missing() const {
  std::size_t living = 0;
  for (std::size_t i = 0; i < cluster_.size(); ++i) {
    if (!cluster_.daemon_alive(i)) continue;
    if (!current(i)) return fmt::format("node {}'s membership has not begun", i);
    ++living;
  }
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    if (!current(i)) continue;
    if (std::string lacking = missing_of(i, living); !lacking.empty()) return lacking;
  }
  if (!partial()) return {};
  if (const std::size_t one_sided = members_.one_sided_links(); one_sided > 0) {
    return fmt::format("{} neighbours are not so for the other", one_sided);
  }
  if (const std::size_t largest = members_.largest_component(); largest < living) {
    return fmt::format("views connect {} nodes of {}", largest, living);
  }
  return {};
}

}  // namespace gossamer::sim
