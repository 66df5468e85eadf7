// Checks of data from outside, whether they come in a message or from a file or memory that others can write.
//
// Pure, any thread.

#pragma once

#include <optional>
#include <string_view>

#include "gossip/messages.hpp"

namespace gossamer {

/// Valid UTF-8 without control characters, at most `max_bytes`: fit for a log and a table.
[[nodiscard]] bool is_plain_text(std::string_view text, std::size_t max_bytes);

/// Says which limit of messages.hpp does not hold; nothing if the settings are valid.
[[nodiscard]] std::optional<std::string_view> fault_of(const JobSettings& settings);

}  // namespace gossamer
