// The names that jobs and tensors may have. The client checks them before it opens, and the daemon again before it
// trusts them. Names end up in logs, metrics, JSON and file names, so only characters that are harmless in all of these
// are allowed. Pure functions, for any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sdk/layout/shared_memory.hpp"

namespace gossamer::layout {

/// 1 to 63 letters, digits, '.', '_' or '-', without a '.' in front.
[[nodiscard]] constexpr bool is_job_name(std::string_view name) {
  if (name.empty() || name.size() > max_job_bytes || name.front() == '.') return false;
  for (const char c : name) {
    const bool letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter_or_digit && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

/// Well-formed UTF-8 (RFC 3629: shortest form, no surrogates, at most U+10FFFF) without control characters.
[[nodiscard]] constexpr bool is_clean_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto first = static_cast<std::uint8_t>(text[i++]);
    if (first < 0x80) {
      if (first < 0x20 || first == 0x7f) return false;
      continue;
    }
    const int following = first >= 0xf0 && first <= 0xf4   ? 3
                          : first >= 0xe0 && first <= 0xef ? 2
                          : first >= 0xc2 && first <= 0xdf ? 1
                                                           : 0;
    if (following == 0) return false;
    std::uint32_t code_point = first & (0x3fu >> following);
    for (int n = 0; n < following; ++n) {
      if (i == text.size() || (static_cast<std::uint8_t>(text[i]) & 0xc0) != 0x80) return false;
      code_point = code_point << 6 | (static_cast<std::uint8_t>(text[i++]) & 0x3fu);
    }
    const bool too_long = (following == 2 && code_point < 0x800) || (following == 3 && code_point < 0x10000);
    if (too_long || code_point > 0x10ffff || (code_point >= 0xd800 && code_point <= 0xdfff)) return false;
  }
  return true;
}

/// 1 to 255 bytes of clean UTF-8.
[[nodiscard]] constexpr bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() <= max_name_bytes && is_clean_utf8(name);
}

}  // namespace gossamer::layout
