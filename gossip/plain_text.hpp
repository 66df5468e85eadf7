// Text from outside that is fit for a log and a table.
//
// Pure, any thread.

#pragma once

#include <cstddef>
#include <string_view>

namespace gossamer {

/// Valid UTF-8 without control characters, at most `max_bytes`.
[[nodiscard]] bool is_plain_text(std::string_view text, std::size_t max_bytes);

}  // namespace gossamer
