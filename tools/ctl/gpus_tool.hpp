// gossamerctl gpus asks the daemon, which watches the GPUs. If no daemon answers, or it sees no GPU, this process looks
// itself.
//
// Looking blocks for some seconds at most, whatever the driver does.

#pragma once

#include "daemon/gpus/gpu.hpp"
#include "tools/ctl/commands.hpp"

namespace gossamer::ctl {

/// The GPUs as this process sees them.
[[nodiscard]] gpus::GpuReport look_at_gpus();

/// The daemon's report if the daemon watches GPUs, and otherwise what this process sees. `by` says which: "daemon" or
/// "gossamerctl".
struct GpusSeen {
  gpus::GpuReport report;
  const char* by;
};
[[nodiscard]] std::expected<GpusSeen, ControlError> see_gpus(const Invocation& call);

}  // namespace gossamer::ctl
