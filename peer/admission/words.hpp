// Reads lines of words, as the text files of the state folder have them.
//
// Used by peer/admission/ only. Pure, any thread.

#pragma once

#include <algorithm>
#include <charconv>
#include <string_view>

namespace gossamer::peer {

/// Takes the text up to the next space, and that space, off the line.
inline std::string_view next_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

/// Takes the next line off the text. The result is without its line end.
inline std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

/// False unless all of the text is a decimal number.
template <class Number>
[[nodiscard]] bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace gossamer::peer
