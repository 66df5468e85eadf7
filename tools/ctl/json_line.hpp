// The output of --json: one line with an object, which names the version of gossamerctl.schema.json that describes it.
// Pure.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gossamer::ctl {

/// Within a version, members are added, and never renamed, removed or given another meaning
/// (docs/reference/gossamerctl.md).
inline constexpr int json_schema_version = 1;

[[nodiscard]] inline std::string json_line(nlohmann::json answer) {
  answer["schema"] = json_schema_version;
  // A path in an error need not be UTF-8.
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gossamer::ctl
