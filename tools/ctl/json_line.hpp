// What --json prints: one line, an object that says by which version of gossamerctl.schema.json it is to be read. Pure.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gossamer::ctl {

/// Within a version members are added, never renamed, removed or given another meaning (docs/reference/gossamerctl.md).
inline constexpr int json_schema_version = 1;

[[nodiscard]] inline std::string json_line(nlohmann::json answer) {
  answer["schema"] = json_schema_version;
  // What other nodes call themselves may be no UTF-8.
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gossamer::ctl
