// gossamerctl's view of the GPUs: a table, and doctor's findings. Pure.

#pragma once

#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"
#include "tools/ctl/finding.hpp"

namespace gossamer::ctl {

/// A table of at most 80 columns. Below it are the GPUs that have a problem, and what to do.
[[nodiscard]] std::string gpus_table(const gpus::GpuReport& report, bool colour);

/// Empty where there is neither a driver nor a GPU.
[[nodiscard]] std::vector<Finding> examine_gpus(const gpus::GpuReport& report);

}  // namespace gossamer::ctl
