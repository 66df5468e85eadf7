#include "peer/keys/fields.hpp"

#include <sodium.h>

namespace gossamer::peer {
namespace {

constexpr int text_form = sodium_base64_VARIANT_URLSAFE_NO_PADDING;

/// This check is needed because libsodium reads some bytes above 127 as '_'.
bool is_base64url(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

}  // namespace

std::string to_base64url(std::vector<std::uint8_t>&& record) {
  std::string text(sodium_base64_encoded_len(record.size(), text_form), '\0');
  sodium_bin2base64(text.data(), text.size(), record.data(), record.size(), text_form);
  text.pop_back();  // the final zero
  wipe(record);
  return text;
}

std::optional<std::vector<std::uint8_t>> from_base64url(std::string_view text) {
  if (text.empty() || !std::ranges::all_of(text, is_base64url)) return std::nullopt;
  std::vector<std::uint8_t> record(text.size());
  std::size_t filled = 0;
  const bool decoded = sodium_base642bin(record.data(), record.size(), text.data(), text.size(), nullptr, &filled,
                                         nullptr, text_form) == 0;
  if (!decoded) {
    wipe(record);
    return std::nullopt;
  }
  record.resize(filled);
  return record;
}

void wipe(std::vector<std::uint8_t>& record) {
  sodium_memzero(record.data(), record.size());
}

}  // namespace gossamer::peer
