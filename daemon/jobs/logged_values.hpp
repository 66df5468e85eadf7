// The values that the programs of a job have logged (gossamer_log()), read from their memories and averaged with those
// that the neighbours tell. A client may write anything to its memory at any time.
//
// On the loop's thread.

#pragma once

#include <span>
#include <vector>

#include "daemon/report/status.hpp"
#include "gossip/messages.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::daemon {

/// The means of at most max_logged names, in ascending order. Names that are no plain text are left out. `others`: what
/// each neighbour tells.
[[nodiscard]] std::vector<LoggedStatus> means_of_logged(std::span<layout::Logged* const> here,
                                                        std::span<const std::vector<LoggedValue>> others);
/// Writes the means to where the program reads them.
void tell_means(layout::Logged& memory, std::span<const LoggedStatus> means);

}  // namespace gossamer::daemon
