// Measures gossip::Membership in a simulated cluster: how soon a crash is known, how often a live node is declared
// dead, how much traffic there is, and how soon a divided cluster is whole again. One thread.

#pragma once

#include <string>

#include "tools/sim/membership/membership.hpp"

namespace gossamer::sim {

struct MembershipPlan {
  std::size_t nodes = 10;
  std::string profile = "lan";  ///< lan or wan: the state machine's constants and the network's latencies
  double loss = 0.05;           ///< share of messages lost, while loss is measured
  double seconds = 60;          ///< time measured at rest, and again under loss
  std::size_t crashes = 5;
  bool with_loss = true;  ///< loss is measured, too
  bool with_pauses = true;
  bool with_partition = true;
  std::uint64_t seed = 1;
  gossip::MembershipOptions options = {};
};

/// Times in virtual seconds. -1: it did not happen in the time allowed; -2: not measured.
struct MembershipFigures {
  std::size_t nodes = 0;
  bool partial = false;
  double settle_s = -1;        ///< from the last node's start until all views are complete
  double suspected_s[2] = {};  ///< from a crash until anybody first suspects it; median, worst
  double declared_s[2] = {};   ///< until anybody first declares it dead
  double known_s[2] = {};      ///< until every node knows that it is dead
  double known_share = 0;      ///< the least share of nodes that knew of a death in the time allowed
  double bytes_per_s = 0;      ///< sent by a node at rest, mean
  double bytes_per_s_most = 0;
  double messages_per_s = 0;
  double speed = 0;                ///< virtual seconds per second of one core, at rest
  std::size_t suspected_rest = 0;  ///< live nodes suspected at rest, without loss
  std::size_t died_rest = 0;       ///< live nodes declared dead at rest, without loss
  std::size_t suspected_loss = 0;  ///< live nodes suspected under loss
  std::size_t died_loss = 0;
  double bytes_per_s_loss = -2;
  std::size_t paused = 0;            ///< nodes that paused together; 0: not measured
  std::size_t paused_died[2] = {};   ///< paused nodes declared dead: paused for 10 s, for 60 s
  std::size_t healthy_died[2] = {};  ///< other nodes declared dead meanwhile and in the next minute
  double joined_s = -2;              ///< from the end of a minute's division into halves until links connect all nodes
  double converged_s = -2;  ///< until all views are complete, with fewer than 1 in 1,000 beliefs in a death wrong
  double wrong_share = 0;   ///< the share of wrong beliefs, of all nodes about all nodes, half a minute (LAN) later
  double eigenvalue = 0;    ///< see MembershipCluster::walk_eigenvalue()
  double degree[3] = {};    ///< neighbours: least, mean, most
  double memory_mib = 0;    ///< the most memory of this process so far
};

/// Throws UsageError for a plan that cannot be carried out.
[[nodiscard]] MembershipFigures measure_membership(const MembershipPlan& plan);

/// The options of a profile. Throws UsageError if no profile has that name.
[[nodiscard]] gossip::MembershipOptions membership_profile(const std::string& name);
/// The network that a profile is meant for: 0.25 to 0.75 ms one way, or 40 to 100 ms.
[[nodiscard]] PathConditions membership_network(const std::string& profile);

}  // namespace gossamer::sim
