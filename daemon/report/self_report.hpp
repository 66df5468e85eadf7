// The daemon's report to `gossamerctl doctor` on its own process, which nobody else can see: its limits, the files of
// its keys, and the folder of its state.
//
// Made on the loop's thread when the command arrives: a few system calls, no state. The keys of the JSON are a contract
// with scripts: add keys, and never rename one.

#pragma once

#include <nlohmann/json.hpp>

#include "daemon/config/config.hpp"

namespace gossamer::daemon {

/// {"process": {...}}. `config` is resolved.
[[nodiscard]] nlohmann::json self_report(const Config& config);

}  // namespace gossamer::daemon
