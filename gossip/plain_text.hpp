// Checks whether text from outside is fit for a log, a table and JSON: names of nodes, jobs' settings, tensors,
// reasons.
//
// Pure, any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gossamer {

/// The text without the characters of `blank` at both ends.
[[nodiscard]] constexpr std::string_view trimmed(std::string_view text, std::string_view blank) {
  const std::size_t begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

/// True for characters that are invisible or change the direction of the text after them, because they can disguise a
/// text. True also for control characters (U+0080 to U+009F as well: some terminals obey them).
[[nodiscard]] constexpr bool is_unseen(std::uint32_t code_point) {
  constexpr struct {
    std::uint32_t first, last;
  } unseen[] = {{0, 0x1f},          {0x7f, 0x9f},      {0xad, 0xad},     {0x34f, 0x34f},     {0x61c, 0x61c},
                {0x115f, 0x1160},   {0x17b4, 0x17b5},  {0x180b, 0x180f}, {0x200b, 0x200f},   {0x2028, 0x202e},
                {0x2060, 0x206f},   {0x2800, 0x2800},  {0x3164, 0x3164}, {0xfdd0, 0xfdef},   {0xfe00, 0xfe0f},
                {0xfeff, 0xfeff},   {0xffa0, 0xffa0},  {0xfff0, 0xfffb}, {0x13430, 0x13455}, {0x1bca0, 0x1bca3},
                {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
  if ((code_point & 0xfffe) == 0xfffe) return true;  // no characters at all
  for (const auto& [first, last] : unseen) {
    if (code_point >= first && code_point <= last) return true;
  }
  return false;
}

/// True for well-formed UTF-8 (RFC 3629: shortest form, no surrogates, at most U+10FFFF) of at most `max_bytes`,
/// without any character for which is_unseen() is true.
[[nodiscard]] constexpr bool is_plain_text(std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes) return false;
  std::size_t i = 0;
  while (i < text.size()) {
    const auto first = static_cast<std::uint8_t>(text[i++]);
    const int following = first < 0x80                     ? 0
                          : first >= 0xf0 && first <= 0xf4 ? 3
                          : first >= 0xe0 && first <= 0xef ? 2
                          : first >= 0xc2 && first <= 0xdf ? 1
                                                           : -1;
    if (following < 0) return false;
    std::uint32_t code_point = following == 0 ? first : first & (0x3fu >> following);
    for (int n = 0; n < following; ++n) {
      if (i == text.size() || (static_cast<std::uint8_t>(text[i]) & 0xc0) != 0x80) return false;
      code_point = code_point << 6 | (static_cast<std::uint8_t>(text[i++]) & 0x3fu);
    }
    const bool too_long = (following == 2 && code_point < 0x800) || (following == 3 && code_point < 0x10000);
    if (too_long || code_point > 0x10ffff || (code_point >= 0xd800 && code_point <= 0xdfff)) return false;
    if (is_unseen(code_point)) return false;
  }
  return true;
}

/// The rule of is_plain_text() in words, for error messages.
[[nodiscard]] inline std::string plain_text_rule(std::size_t max_bytes) {
  return "at most " + std::to_string(max_bytes) + " bytes of UTF-8 without control or invisible characters";
}

}  // namespace gossamer
