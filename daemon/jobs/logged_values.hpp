// What the programs of a job have logged (gossamer_log()), in their memories and as the neighbours tell of it. The
// client may write anything there at any time.
//
// The loop's thread.

#pragma once

#include <span>
#include <vector>

#include "daemon/report/status.hpp"
#include "gossip/messages.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::daemon {

/// At most max_logged names, ascending. Names that are no plain text are left out. `others`: what each neighbour tells.
[[nodiscard]] std::vector<LoggedStatus> means_of_logged(std::span<layout::Logged* const> here,
                                                        std::span<const std::vector<LoggedValue>> others);
/// Tells the program.
void tell_means(layout::Logged& memory, std::span<const LoggedStatus> means);

}  // namespace gossamer::daemon
