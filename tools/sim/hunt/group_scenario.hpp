// Nodes with several clients of one job each, under faults: daemons die at any moment and come back, their clients
// train on meanwhile and attach again in any order, messages are lost, doubled and late. The decisions are the shipped
// ones: gossip::Replica, Executor and Group over simulated memory.
//
// Every client trains by known amounts, so it is known what the nodes' models must add up to in the end: each client's
// training once, by its share among its node's clients, and every exchange at both ends or at neither. No client dies
// here, since what a dead client had not published is nobody's; and all come back before their daemon goes on without
// them, so that the gaps of several lives (gossip/group/receipts.hpp) are not reached: group_crash_test is for these.
//
// One seed decides everything. One thread.

#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace gossamer::sim {

struct GroupOutcome {
  std::uint64_t events = 0;
  std::uint64_t deaths = 0;     ///< of daemons
  std::uint64_t exchanges = 0;  ///< concluded
  std::uint64_t steps = 0;      ///< of clients
};

/// What a node does wrong on purpose, to show that the scenario notices.
enum class GroupFault {
  none,
  lost_copy,          ///< a daemon's death takes the node's copy along
  lost_receipts,      ///< or what is noted of publications
  late_copy,          ///< a change of the copy counts only when the next one is made
  correction_lost,    ///< a client does not add one correction
  correction_twice,   ///< or adds it twice
  publication_twice,  ///< a death leaves publications noted as being in no copy, though they were taken
  lost_records,       ///< a daemon's death takes its replies' records along
  lost_own_halves,    ///< or which exchanges it had begun
};
struct GroupFaultRule {
  GroupFault fault;
  const char* name;
};
[[nodiscard]] std::span<const GroupFaultRule> group_faults();

/// Throws std::runtime_error, which says what is wrong, if something is.
GroupOutcome run_group_scenario(std::uint64_t seed, GroupFault fault = GroupFault::none);

}  // namespace gossamer::sim
