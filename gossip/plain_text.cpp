#include "gossip/plain_text.hpp"

namespace gossamer {

namespace {

/// Length of the UTF-8 sequence at the start of `text` (RFC 3629: no overlong forms, no surrogates); 0 if there is
/// none.
std::size_t sequence_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char next = at(1);
  if ((lead == 0xe0 && next < 0xa0) || (lead == 0xed && next > 0x9f) || (lead == 0xf0 && next < 0x90) ||
      (lead == 0xf4 && next > 0x8f)) {
    return 0;
  }
  return length;
}

}  // namespace

bool is_plain_text(std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes) return false;
  while (!text.empty()) {
    const std::size_t length = sequence_bytes(text);
    if (length == 0) return false;
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 1 && (first < 0x20 || first == 0x7f)) return false;
    // U+0080 to U+009F are control characters, too; some terminals obey them.
    if (length == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace gossamer
