// What gossip takes of a training program's time, and of the memory's bandwidth in one step: two real daemons, a client
// at each, whose training steps leave the cores alone, as steps on an accelerator do.

#pragma once

#include <gossamer.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gossamer::bench {

struct TrainingOptions {
  gossamer_dtype dtype = GOSSAMER_F32;
  std::size_t elements = 1'000'000;
  double step_ms = 20;  ///< of training
  double seconds = 10;  ///< measured, after a time in which the cadence settles
  std::string daemon;   ///< the gossamerd to run; empty: the one beside this program
};

/// Of the first client.
struct TrainingFigures {
  double share = 0;              ///< of the time that was spent in gossamer_step()
  double longest_step_ms = 0;    ///< of gossamer_step()
  std::uint64_t most_bytes = 0;  ///< of fragments that one step published
  std::uint64_t steps = 0;
  std::uint64_t fragments = 0;  ///< published
  std::uint64_t exchanges = 0;
};

/// Memory that it takes: two models, and three buffers in fp32 for each.
[[nodiscard]] double training_bytes(const TrainingOptions& options);

[[nodiscard]] TrainingFigures measure_training(const TrainingOptions& options);

}  // namespace gossamer::bench
