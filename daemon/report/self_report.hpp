// What the daemon tells `gossamerctl doctor` of its own process, where nobody else can look: its limits, its keys'
// files and the folder of its state.
//
// Made on the loop's thread when the command arrives; a handful of system calls, no state. The keys of the JSON are a
// contract with scripts: add, do not rename.

#pragma once

#include <nlohmann/json.hpp>

#include "daemon/config/config.hpp"

namespace gossamer::daemon {

/// {"process": {...}}. `config` is resolved.
[[nodiscard]] nlohmann::json self_report(const Config& config);

}  // namespace gossamer::daemon
