// Whom a node exchanges with next: the partner policies, from a random one to the finite-time schedules.
//
// Every policy is a function of who takes part, a round number and randomness; nothing is remembered between calls and
// nothing is agreed on over the network. Nodes stand in the order of their ids, and a node's position among the
// participants is its *rank*: two nodes that know the same participants compute the same schedule. Nodes do not share a
// round. Each passes its own count of exchanges begun for the fragment at hand, so that the schedules hold exactly only
// as long as everyone keeps step and every pair is served; short of that they still spread exchanges over partners
// evenly. They speed consensus up and are never needed for it: where a schedule names nobody in reach, the choice is
// random.
//
// Who calls it: Replica when it starts an exchange (the loop's thread), simulations and tests. Pure; any thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gossip/random.hpp"

namespace gossamer::gossip {

enum class PartnerPolicy : std::uint8_t {
  random,                ///< anyone, uniformly: what holds up best when nodes come and go
  ring,                  ///< the neighbours in rank, by turns
  torus,                 ///< the four neighbours on a grid with its ends joined, by turns
  hypercube,             ///< rank xor 2^k, k by turns: consensus in log2(n) rounds where n is a power of two
  one_peer_exponential,  ///< rank + 2^k modulo n, k by turns (Ying et al. 2021, arXiv 2110.13363)
  base,                  ///< pairs that reach consensus in finitely many rounds for any n (see base_pair())
  regular,               ///< a random one of `degree` fixed neighbours (see circulant_offsets())
  hub,                   ///< the first node; that one takes anyone
  weighted,              ///< anyone, in proportion to goodput, with a floor (see selection_shares())
};

/// The policies as written in configurations, in the order of the enumeration.
inline constexpr const char* policy_names[] = {"random", "ring",    "torus", "hypercube", "one-peer-exponential",
                                               "base",   "regular", "hub",   "weighted"};

/// A policy with its parameter.
struct PartnerRule {
  PartnerPolicy policy = PartnerPolicy::random;
  std::uint32_t degree = 4;  ///< of `regular`: neighbours of each node. More mix faster and need more links

  friend bool operator==(const PartnerRule&, const PartnerRule&) = default;
};

/// Of `weighted`: the share of its exchanges that a node deals out evenly, whatever the goodput. With 0 a node behind
/// a slow link would be left out for good; with 1 the policy is `random`.
inline constexpr double weighted_floor = 0.25;

/// A participant other than the node itself.
struct Candidate {
  NodeId id = {};
  double goodput = 0;    ///< bytes per second that its link has shown; 0: not known yet
  bool in_reach = true;  ///< false: counts in the ranks, but is not to be chosen now (no link, or it was just busy)
};

/// The candidate to exchange with next, as an index; none if nobody is in reach. `candidates` ascend by id and do not
/// hold `self`. A rule that does not suit the number of participants chooses at random.
[[nodiscard]] std::optional<std::size_t> choose_partner(const PartnerRule& rule, const NodeId& self,
                                                        std::span<const Candidate> candidates, std::uint64_t round,
                                                        Random& random);

/// Why n participants cannot follow the rule, in words for a user; none if they can.
[[nodiscard]] std::optional<std::string> objection(const PartnerRule& rule, std::size_t n);

/// One of policy_names, and back.
[[nodiscard]] const char* policy_name(PartnerPolicy policy);
[[nodiscard]] std::optional<PartnerPolicy> policy_of(std::string_view name);

// --- the schedules themselves, for tests and simulations -------------------------------------------------------------

/// A rank's partner in one round, and the weight with which both move towards each other (½ but for `base`).
struct ScheduledPartner {
  std::size_t rank = 0;
  double weight = 0.5;

  friend bool operator==(const ScheduledPartner&, const ScheduledPartner&) = default;
};

/// Rounds after which the schedule of n ranks repeats; 0 for policies without one (random, regular, hub, weighted) and
/// for n that the rule does not suit.
[[nodiscard]] std::uint64_t schedule_period(const PartnerRule& rule, std::size_t n);

/// Whom `rank` of n meets in `round`; none if it sits this round out, or the policy has no schedule.
[[nodiscard]] std::optional<ScheduledPartner> scheduled_partner(const PartnerRule& rule, std::size_t n,
                                                                std::size_t rank, std::uint64_t round);

/// The round as a mixing matrix, n × n, row by row: x becomes W·x. Symmetric and doubly stochastic; that of
/// `one_peer_exponential`, which is directed, only doubly stochastic. The identity for policies without a schedule.
[[nodiscard]] std::vector<double> schedule(const PartnerRule& rule, std::size_t n, std::uint64_t round);

/// A pair of rank, in one round of the Simple Base-2 graph (Takezawa et al. 2023, arXiv 2305.11420, algorithm 2 with
/// k = 1), and the weights that make all n values equal after one period, at most 2·log2(n) + 2 rounds:
/// n is a sum of powers of two, 2^p1 > 2^p2 > …, and the ranks are cut into groups of these sizes. First every group
/// averages itself as a hypercube. Then group l meets all ranks behind it in pairs, with the weight |group l| over the
/// ranks from l on, which gives the group's sum its share of the total, and averages itself again.
/// The weight exceeds ½. Exchanges move by at most ½, so that replicas come close to consensus instead of reaching it.
[[nodiscard]] std::optional<ScheduledPartner> base_pair(std::size_t n, std::size_t rank, std::uint64_t round);

/// How far off, in rank, the neighbours on one side are in `regular`: about n^(2i/degree) for i = 0, 1, …, which keeps
/// the graph's diameter near n^(2/degree); n/2 besides if the degree is odd. Ascending, each at most n/2.
[[nodiscard]] std::vector<std::size_t> circulant_offsets(std::size_t n, std::uint32_t degree);

/// The probability with which `weighted` chooses each candidate: `weighted_floor` dealt out evenly over those in reach,
/// the rest in proportion to goodput, of which a link that has shown none yet is taken to have the others' mean.
/// So every pair meets at a share of at least weighted_floor of what `random` gives it, and with n nodes choosing in
/// turn the second eigenvalue of the expected mixing matrix is at most 1 − weighted_floor/(n − 1).
[[nodiscard]] std::vector<double> selection_shares(std::span<const Candidate> candidates);

}  // namespace gossamer::gossip
