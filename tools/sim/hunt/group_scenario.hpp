// Nodes with several clients of one job each, under faults. Daemons die at any moment and come back; their clients
// train on meanwhile and attach again in any order; messages are lost, doubled and late. The decisions are the shipped
// ones: gossip::Replica, Executor and Group over simulated memory.
//
// Every client trains by known amounts, so the final sum of the nodes' models is known: it contains each client's
// training once, weighted by its share among its node's clients, and every exchange at both ends or at neither. Clients
// go, others come, and some publish NaN for a while. They do this only when all their training is published, because
// the rest would be lost. No client is given a correction that is not finite. All clients return before their daemon
// goes on, so gaps of several lives (gossip/group/receipts.hpp) are not reached: group_crash_test reaches them. Some
// clients only keep the job: they never train, and nobody waits for them.
//
// In some runs the programs average exactly, so that all hold one model. No daemon may then change it, and a node that
// only keeps the job follows it.
//
// In the end the programs finish, several times, with a little training between. Then all clients of a node must hold
// the same, the nodes must agree, and exactly one client is to save.
//
// One seed decides everything. One thread.

#pragma once

#include <array>
#include <cstdint>

#include "tools/sim/hunt/seeded_scenario.hpp"

namespace gossamer::sim {

struct GroupOutcome {
  std::uint64_t events = 0;
  std::uint64_t deaths = 0;     ///< daemons that died
  std::uint64_t exchanges = 0;  ///< exchanges concluded
  std::uint64_t steps = 0;      ///< the clients' training steps
  std::uint64_t ends = 0;       ///< times that all programs finished and agreed
  std::uint64_t changes = 0;    ///< clients that went, came later, or published NaN for a while

  [[nodiscard]] std::array<ScenarioCount, 6> counts() const {
    return {{{"events", events},
             {"deaths of daemons", deaths},
             {"clients that went, came or published NaN", changes},
             {"steps of clients", steps},
             {"exchanges of the last lives", exchanges},
             {"ends", ends}}};
  }
};

/// A fault that a node is given on purpose, to show that the scenario finds it.
enum class GroupFault {
  none,
  lost_copy,          ///< a daemon's death loses the node's copy
  lost_receipts,      ///< a daemon's death loses the receipts of publications
  late_copy,          ///< a change of the copy counts only when the next one is made
  correction_lost,    ///< a client leaves one correction out
  correction_twice,   ///< a client adds one correction twice
  publication_twice,  ///< after a death, publications that a copy contains are noted as in no copy
  lost_records,       ///< a daemon's death loses the records of its replies
  lost_own_halves,    ///< a daemon's death loses the list of the exchanges it had begun
  keepers_counted,    ///< clients that keep the job count among those that share the training
  mean_of_equals,     ///< processes that average exactly are given corrections, towards the mean of their progress
  last_clock_unseen,  ///< what a program trained just before it finished is not seen
};
inline constexpr FaultRule<GroupFault> group_faults[] = {
    {GroupFault::lost_copy, "lost-copy"},
    {GroupFault::lost_receipts, "lost-receipts"},
    {GroupFault::late_copy, "late-copy"},
    {GroupFault::correction_lost, "correction-lost"},
    {GroupFault::correction_twice, "correction-twice"},
    {GroupFault::publication_twice, "publication-twice"},
    {GroupFault::lost_records, "lost-records"},
    {GroupFault::lost_own_halves, "lost-own-halves"},
    {GroupFault::keepers_counted, "keepers-counted"},
    {GroupFault::mean_of_equals, "mean-of-equals"},
    {GroupFault::last_clock_unseen, "last-clock-unseen"},
};

/// Throws std::runtime_error with a text if something is wrong.
GroupOutcome run_group_scenario(std::uint64_t seed, GroupFault fault);

}  // namespace gossamer::sim
