// The choice of the next partner: policies from random choice to finite-time schedules.
//
// A policy is a function of the participants, a round number and randomness. Nothing is remembered between calls, and
// nodes do not negotiate. Nodes are ordered by id, and a node's position among the participants is its *rank*: two
// nodes that know the same participants compute the same schedule. Nodes do not share a round number. Each passes its
// own count of exchanges begun for the fragment, so a schedule holds exactly only while all nodes keep step and every
// pair is served. Otherwise it still spreads exchanges evenly over partners. Schedules speed up consensus and are never
// needed for it: where a schedule names nobody in reach, the choice is random.
//
// Replica calls this when it starts an exchange (on the loop's thread); simulations and tests do as well. Pure.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gossip/random.hpp"

namespace gossamer::gossip {

enum class PartnerPolicy : std::uint8_t {
  random,                ///< anyone, uniformly (Initiator leaves the last partner out); robust when nodes come and go
  ring,                  ///< the two neighbours by rank, in turn
  torus,                 ///< the four neighbours on a grid whose ends are joined, in turn
  hypercube,             ///< rank xor 2^k, k in turn: consensus in log2(n) rounds where n is a power of two
  one_peer_exponential,  ///< rank + 2^k modulo n, k in turn (Ying et al. 2021, arXiv 2110.13363)
  base,                  ///< pairs that reach consensus in finitely many rounds for any n (see base_pair())
  regular,               ///< a random one of `degree` fixed neighbours (see circulant_offsets())
  hub,                   ///< the first node; the first node itself chooses anyone
  weighted,              ///< anyone, in proportion to goodput, with a floor (see selection_shares())
  owner,                 ///< each fragment's owner (gossip/owner.hpp), which Initiator knows; in this file: anyone
};

/// The policies as written in configurations, in the order of the enumeration.
inline constexpr const char* policy_names[] = {"random", "ring",    "torus", "hypercube", "one-peer-exponential",
                                               "base",   "regular", "hub",   "weighted",  "owner"};

/// A policy with its parameter.
struct PartnerRule {
  PartnerPolicy policy = PartnerPolicy::random;
  std::uint32_t degree = 4;  ///< number of neighbours for `regular`: more mix faster and need more links

  friend bool operator==(const PartnerRule&, const PartnerRule&) = default;
};

/// The share of exchanges that `weighted` spreads evenly, whatever the goodput. With 0 a node behind a slow link would
/// never be chosen; with 1 the policy is `random`.
inline constexpr double weighted_floor = 0.25;

/// A participant other than the node itself.
struct Candidate {
  NodeId id = {};
  double goodput = 0;    ///< bytes per second that its link has shown; 0: not known yet
  bool in_reach = true;  ///< false: counts in the ranks, but cannot be chosen now (no link, or just busy)
};

/// The index of the candidate to exchange with next; none if nobody is in reach. `candidates` ascend by id and do not
/// contain `self`. A rule that does not suit the number of participants chooses at random.
[[nodiscard]] std::optional<std::size_t> choose_partner(const PartnerRule& rule, const NodeId& self,
                                                        std::span<const Candidate> candidates, std::uint64_t round,
                                                        Random& random);

/// The reason, in words for a user, why n participants cannot follow the rule; none if they can.
[[nodiscard]] std::optional<std::string> objection(const PartnerRule& rule, std::size_t n);

/// Converts between a policy and its entry in policy_names.
[[nodiscard]] const char* policy_name(PartnerPolicy policy);
[[nodiscard]] std::optional<PartnerPolicy> policy_of(std::string_view name);

// --- the schedules themselves, for tests and simulations -------------------------------------------------------------

/// A rank's partner in one round, and the weight with which both move towards each other (½ but for `base`).
struct ScheduledPartner {
  std::size_t rank = 0;
  double weight = 0.5;

  friend bool operator==(const ScheduledPartner&, const ScheduledPartner&) = default;
};

/// Number of rounds after which the schedule of n ranks repeats. 0 for policies without a schedule (random, regular,
/// hub, weighted) and for n that the rule does not suit.
[[nodiscard]] std::uint64_t schedule_period(const PartnerRule& rule, std::size_t n);

/// The partner of `rank` in `round`; none if it sits this round out, or the policy has no schedule.
[[nodiscard]] std::optional<ScheduledPartner> scheduled_partner(const PartnerRule& rule, std::size_t n,
                                                                std::size_t rank, std::uint64_t round);

/// The round as a mixing matrix, n × n, row by row: x becomes W·x. It is symmetric and doubly stochastic; for the
/// directed `one_peer_exponential` it is only doubly stochastic. For policies without a schedule it is the identity.
[[nodiscard]] std::vector<double> schedule(const PartnerRule& rule, std::size_t n, std::uint64_t round);

/// One round of the Simple Base-2 graph (Takezawa et al. 2023, arXiv 2305.11420, algorithm 2 with k = 1): the partner
/// of `rank`, and the weight. All n values are equal after one period of at most 2·log2(n) + 2 rounds.
/// n is a sum of powers of two, 2^p1 > 2^p2 > …, and the ranks are cut into groups of these sizes. First every group
/// averages itself as a hypercube. Then group l meets all later ranks in pairs, with the weight |group l| divided by
/// the number of ranks from l on, which gives the group's sum its share of the total. Then group l averages itself
/// again. The weight exceeds ½. Exchanges move by at most ½, so replicas come close to consensus and do not reach it.
[[nodiscard]] std::optional<ScheduledPartner> base_pair(std::size_t n, std::size_t rank, std::uint64_t round);

/// Rank offsets of the neighbours on one side for `regular`: about n^(2i/degree) for i = 0, 1, …, which keeps the
/// graph's diameter near n^(2/degree). An odd degree adds n/2. Ascending, each at most n/2.
[[nodiscard]] std::vector<std::size_t> circulant_offsets(std::size_t n, std::uint32_t degree);

/// The probability with which `weighted` chooses each candidate. `weighted_floor` is spread evenly over those in reach,
/// the rest in proportion to goodput. A link without known goodput counts with the mean of the others. So every pair
/// meets at a share of at least weighted_floor of what `random` gives it. With n nodes that choose in turn, the second
/// eigenvalue of the expected mixing matrix is at most 1 − weighted_floor/(n − 1).
[[nodiscard]] std::vector<double> selection_shares(std::span<const Candidate> candidates);

}  // namespace gossamer::gossip
