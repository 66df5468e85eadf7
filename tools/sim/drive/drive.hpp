// Simulates a cluster whose nodes a program trains (tools/sim/drive/program.hpp): with the shipped replicas, with exact
// means of the models, or without any exchange.
//
// One thread.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gossip/replica/replica_options.hpp"
#include "tools/sim/drive/program.hpp"
#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

enum class DriveMethod : std::uint8_t { gossip, average, alone };

/// What happens to a node in the middle of a run.
enum class FaultKind : std::uint8_t {
  kill,    ///< its daemon and its program die
  start,   ///< a dead node comes back with a new program, and joins
  pause,   ///< its program takes no steps, and its daemon stands still
  resume,  ///< both go on
  cut,     ///< it loses all its links; the others take it for dead
  mend,    ///< the links of a node that was cut off are there again
  speed,   ///< it trains at `speed` from now on
};

inline constexpr Named<FaultKind> fault_kinds[] = {
    {"kill", FaultKind::kill}, {"start", FaultKind::start}, {"pause", FaultKind::pause}, {"resume", FaultKind::resume},
    {"cut", FaultKind::cut},   {"mend", FaultKind::mend},   {"speed", FaultKind::speed},
};

struct NodeFault {
  TimeUs at_us = 0;
  FaultKind kind = FaultKind::kill;
  std::size_t node = 0;
  double speed = 1;
};

struct Drive {
  std::string name = "gossip";
  DriveMethod method = DriveMethod::gossip;
  std::uint64_t average_steps = 1;  ///< for the method average: steps between two means
  std::size_t average_members = 1;  ///< for the method average: all wait while fewer nodes are alive
  std::size_t elements = 0;
  std::vector<std::pair<std::size_t, std::size_t>> buffers = {};  ///< [first, last): elements with the role buffer
  std::size_t nodes = 4;
  std::string topology = "complete";
  gossip::ReplicaOptions replica = {};
  TimeUs step_us = 100'000;  ///< one training step of a node of speed 1
  double step_jitter = 0.05;
  std::vector<double> speeds = {};  ///< the speeds of the first nodes; the others have speed 1
  PathConditions path = {};
  double node_bytes_per_s = 0;  ///< each way; 0: not limited
  double byte_scale = 1;        ///< messages count this many times, so that a small model can stand for a large one
  TimeUs detection_us = 2 * us_per_s;  ///< time until the others know that a node is dead
  std::vector<NodeFault> faults = {};  ///< in the order of time
  TimeUs end_us = 0;                   ///< 0: not limited
  std::uint64_t samples = 0;           ///< end of the run, in samples of all nodes; 0: not limited
  std::size_t evaluations = 20;
  std::uint64_t seed = 1;

  [[nodiscard]] double speed(std::size_t node) const { return node < speeds.size() ? speeds[node] : 1.0; }
};

/// Reads a simulation from JSON. Throws UsageError, which names what is wrong.
[[nodiscard]] Drive read_drive(std::string_view text);

[[nodiscard]] LearningRun run_drive(const Drive& drive, const Program& program);

}  // namespace gossamer::sim
