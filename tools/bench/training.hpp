// The share of a training program's time that gossip takes, and the memory traffic that it causes in one step. There
// are two real daemons, each with a client whose training steps leave the cores alone, as steps on an accelerator do.

#pragma once

#include <gossamer.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace gossamer::bench {

struct TrainingOptions {
  gossamer_dtype dtype = GOSSAMER_F32;
  std::size_t elements = 1'000'000;
  double step_ms = 20;  ///< time of a training step
  double seconds = 10;  ///< measured after the cadence has settled
  std::string daemon;   ///< the gossamerd to run; empty: the one beside this program
};

/// The figures of the first client.
struct TrainingFigures {
  double share = 0;              ///< share of the time that was spent in gossamer_step()
  double longest_step_ms = 0;    ///< the longest gossamer_step()
  std::uint64_t most_bytes = 0;  ///< the most bytes of fragments that one step published
  std::uint64_t steps = 0;
  std::uint64_t fragments = 0;  ///< fragments published
  std::uint64_t exchanges = 0;
};

/// The memory needed: two models, and three buffers in fp32 for each.
[[nodiscard]] double training_bytes(const TrainingOptions& options);

[[nodiscard]] TrainingFigures measure_training(const TrainingOptions& options);

}  // namespace gossamer::bench
