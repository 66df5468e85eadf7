// The fields of a daemon's answers, which an older daemon may lack.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/ctl/format.hpp"

namespace gossamer::ctl {

/// 0 if the field is lacking.
[[nodiscard]] inline double number_of(const nlohmann::json& object, const char* name) {
  return object.contains(name) ? object.at(name).get<double>() : 0;
}

/// The field as text that is safe to print, or `lacking` if the field is lacking.
[[nodiscard]] inline std::string text_of(const nlohmann::json& object, const char* name, const char* lacking = "") {
  return object.contains(name) ? safe_text(object.at(name).get<std::string>()) : lacking;
}

/// A job's settings as NAME=VALUE, each behind a space. Safe to print.
[[nodiscard]] inline std::string settings_text(const nlohmann::json& values) {
  std::string text;
  for (const auto& [name, value] : values.items())
    text += " " + safe_text(name) + "=" + safe_text(value.get<std::string>());
  return text;
}

}  // namespace gossamer::ctl
