// What the programs of a job have logged (gossamer_log()), in their memories and as the neighbours tell of it. The
// client may write anything there at any time.
//
// The loop's thread.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gossip/messages.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::daemon {

/// One name: the mean over the processes here, and the mean over the nodes that tell of it.
struct LoggedMean {
  std::string name;
  double value = 0;
  double mean = 0;
  std::uint64_t nodes = 0;  ///< with this one
};

/// At most max_logged names, ascending. Names that are no plain text are left out. `others`: what each neighbour tells.
[[nodiscard]] std::vector<LoggedMean> means_of_logged(std::span<const layout::Logged* const> here,
                                                      std::span<const std::vector<LoggedValue>> others);
/// Tells the program.
void tell_means(layout::Logged& memory, std::span<const LoggedMean> means);

}  // namespace gossamer::daemon
