// Turns a job's settings into text and back, and checks them, wherever they come from: messages, programs, files, and
// memory that others can write.
//
// Pure, any thread.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gossip/messages.hpp"

namespace gossamer {

/// Writes each setting as NAME=VALUE, separated by single spaces.
[[nodiscard]] std::string settings_text(const std::vector<JobSetting>& values);
/// Reads a text of NAME=VALUE words, separated by any white space. The settings keep their order, and fault_of() has
/// still to check them. A word without '=' becomes a name without a value.
[[nodiscard]] std::vector<JobSetting> settings_in(std::string_view text);

/// Says which limit of messages.hpp does not hold; nothing if the settings are valid.
[[nodiscard]] std::optional<std::string_view> fault_of(const JobSettings& settings);

}  // namespace gossamer
