// The daemon's answers as tables. Pure. A missing member, as from a daemon of another version, shows as "-". A member
// of an unexpected type throws nlohmann::json::exception, which main reports.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gossamer::ctl {

[[nodiscard]] std::string status_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string peers_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string members_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string jobs_table(const nlohmann::json& answer, bool colour);
/// The processes of all jobs, each with its job, from the daemon's answer to "jobs". Throws json::exception.
[[nodiscard]] nlohmann::json clients_of(const nlohmann::json& answer);
[[nodiscard]] std::string clients_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string audit_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string denials_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string keys_table(const nlohmann::json& answer, bool colour);

}  // namespace gossamer::ctl
