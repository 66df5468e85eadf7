// Links and deaths as the shipped membership decides them. Each living daemon runs a gossip::Membership; its messages
// cross the same network as its gossip, with the same losses. A daemon that comes back is a new life, with a larger
// incarnation. A paused one neither ticks nor hears, and catches up afterwards.
//
// The simulated transport adds the rest. A link is made if one end wants it, one can dial, and neither holds the other
// dead. Long silence ends it. Nodes that make a link tell each other their present life: a node with exchanges of the
// other's former life gives them up first. Membership alone does not tell a quick restart from a refutation.
//
// Throws Violation, from the schedule, when a table outgrows its bound. One thread.

#pragma once

#include <set>

#include "tools/sim/hunt/overlay.hpp"
#include "tools/sim/membership/membership.hpp"

namespace gossamer::sim {

class OverlayMembership final : public HuntOverlay {
 public:
  OverlayMembership(const gossip::MembershipOptions& options, const OverlayTimes& times, Cluster& cluster,
                    Network& network, Schedule& schedule, std::uint64_t seed);

  void said_goodbye(std::size_t i) override {
    if (i < lives_.size() && members_.running(i)) members_.leave(i);
  }
  [[nodiscard]] std::string missing() const override;
  [[nodiscard]] bool partial() const override;

  /// Sets a test's change of the membership's messages on their way; false drops one.
  void set_tamper(std::function<bool(std::size_t, std::size_t, MembershipMessage&)> tamper) {
    members_.tamper = std::move(tamper);
  }

 private:
  /// A node's memory of another at its transport, kept while the node's own life lasts.
  struct Peer {
    std::uint64_t own_life = 0;
    std::uint64_t life = 0;  ///< the other's life at the last link; 0: none, or it was declared dead since
  };
  void look() override;
  /// A link ends without silence only if it is not wanted and both ends can act.
  bool keeps_link(std::size_t i, std::size_t j, bool reach) override { return !reach || wanted(i, j); }
  void apart(std::size_t /*i*/, std::size_t /*j*/) override {}
  [[nodiscard]] bool may_link(std::size_t i, std::size_t j) const override;
  void meet(std::size_t i, std::size_t j) override;
  void follow(std::size_t i);
  void start(std::size_t i);
  void tell_of_link(std::size_t i, std::size_t j);
  void heard(std::size_t i, const gossip::Membership::Event& event);
  void declare_dead(std::size_t i, std::size_t j);
  void check_bounds(std::size_t i) const;
  void settle(std::size_t i);
  Peer& peer(std::size_t i, std::size_t j);
  /// Node i's membership runs, and belongs to its present daemon.
  [[nodiscard]] bool current(std::size_t i) const;
  /// Node i's membership holds node j to be dead or gone.
  [[nodiscard]] bool holds_dead(std::size_t i, std::size_t j) const;
  [[nodiscard]] bool wants(std::size_t i, std::size_t j) const;
  [[nodiscard]] bool wanted(std::size_t i, std::size_t j) const;
  [[nodiscard]] std::string missing_of(std::size_t i, std::size_t living) const;

  const gossip::MembershipOptions options_;
  MembershipCluster members_;
  std::vector<std::uint64_t> lives_;  ///< the lives of the daemons that members_ runs for
  std::map<std::pair<std::size_t, std::size_t>, Peer> peers_;
  std::set<std::pair<std::size_t, std::size_t>> told_;  ///< i was told of a link to j
};

}  // namespace gossamer::sim
