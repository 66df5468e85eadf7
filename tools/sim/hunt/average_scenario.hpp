// Members of a collective, which averages exactly (gossip/average/averaging.hpp), under faults. Links come late, so
// several nodes may found a group. Members die, pause, leave and come. The failure detector is late. At times, also in
// the middle of a round, it is wrong: for some seconds any nodes count as dead at any others, which send them nothing
// or go on sending. Messages are lost, doubled, late and out of order, and the network is cut and heals. A quorum of
// every round's members stays alive, or the nodes of all dead processes live and say that these are gone.
//
// Every contribution is known, so these are checked. A member that applies a round holds, bit by bit, the mean of
// exactly the round's contributions. A contribution is in at most one round of all groups, and that round has as many
// members as the contribution wants. No contribution of a living member is lost, unless the member goes to another
// group while a plan of the former has it. Once the faults are over, all are members of one group, and its rounds go
// on.
//
// One seed decides everything. One thread.

#pragma once

#include <array>
#include <cstdint>

#include "tools/sim/hunt/seeded_scenario.hpp"

namespace gossamer::sim {

struct AverageOutcome {
  std::uint64_t events = 0;
  std::uint64_t rounds = 0;
  std::uint64_t contributions = 0;  ///< contributions in all rounds
  std::uint64_t deaths = 0;
  std::uint64_t entered = 0;   ///< times that a node became a member
  std::uint64_t repeated = 0;  ///< plans that were not committed
  std::uint64_t groups = 0;    ///< groups that were founded
  std::uint64_t mistakes = 0;  ///< times that living nodes were taken for dead
  std::uint64_t unknown = 0;   ///< contributions given up because nobody could tell whether a round has them
  std::uint64_t blocked = 0;   ///< 1: too many voters of a round died at once

  [[nodiscard]] std::array<ScenarioCount, 10> counts() const {
    return {{{"events", events},
             {"rounds", rounds},
             {"contributions in them", contributions},
             {"plans given up", repeated},
             {"deaths", deaths},
             {"nodes that entered", entered},
             {"groups", groups},
             {"mistakes of the failure detector", mistakes},
             {"contributions given up", unknown},
             {"runs without a quorum in the end", blocked}}};
  }
};

/// A fault that a node is given on purpose, to show that the scenario finds it.
enum class AverageFault {
  none,
  as_they_come,   ///< an owner adds contributions in the order in which they come
  early,          ///< a member uses results as soon as it has all of them, before they are committed
  amnesia,        ///< a member goes back to what it knew a moment before
  taken_unknown,  ///< a node that enters is not told which of its contributions were taken
  groups_apart,   ///< members of two groups do not tell each other
  stale_parts,    ///< contributions that were kept for a plan are used for the next one
  too_few,        ///< a conductor is not told how many members a contribution wants
  given_again,    ///< what was given up in one group, because a round may have it, is given in another
  left_unsaid,    ///< who has left a round undecided does not say so to those who are in it
};
inline constexpr FaultRule<AverageFault> average_faults[] = {
    {AverageFault::as_they_come, "as-they-come"}, {AverageFault::early, "early"},
    {AverageFault::amnesia, "amnesia"},           {AverageFault::taken_unknown, "taken-unknown"},
    {AverageFault::groups_apart, "groups-apart"}, {AverageFault::stale_parts, "stale-parts"},
    {AverageFault::too_few, "too-few"},           {AverageFault::given_again, "given-again"},
    {AverageFault::left_unsaid, "left-unsaid"},
};

/// Throws std::runtime_error with a text if something is wrong.
AverageOutcome run_average_scenario(std::uint64_t seed, AverageFault fault);

}  // namespace gossamer::sim
