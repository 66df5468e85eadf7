// What gossamerctl says of GPUs: a table, and what doctor makes of them. Pure.

#pragma once

#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"
#include "tools/ctl/finding.hpp"

namespace gossamer::ctl {

/// At most 80 columns, and below it what is wrong with which GPU and what to do.
[[nodiscard]] std::string gpus_table(const gpus::GpuReport& report, bool colour);

/// Nothing where there is neither a driver nor a GPU.
[[nodiscard]] std::vector<Finding> examine_gpus(const gpus::GpuReport& report);

}  // namespace gossamer::ctl
