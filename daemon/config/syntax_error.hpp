// Says what is wrong with a configuration that is no TOML, in the words of somebody who has never read about TOML.
//
// The parser says which of its rules has failed ("could not determine value type"). Here the line itself is looked at,
// for the mistakes that people make. Pure.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gossamer::daemon {

/// Where the parser stopped, counted from 1, and what it said.
struct SyntaxError {
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  std::string_view description;
};

/// Says in one line of plain text what is wrong and what to write instead.
[[nodiscard]] std::string explain(const SyntaxError& error, std::string_view text);

}  // namespace gossamer::daemon
