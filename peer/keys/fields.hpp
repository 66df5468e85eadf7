// Writes and reads records of bytes: one field after the other, numbers little endian. A record's text form is
// base64url.
//
// Used by peer/keys/ and peer/admission/ only. Pure, any thread.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer::peer {

inline void append(std::vector<std::uint8_t>& record, std::span<const std::uint8_t> bytes) {
  record.insert(record.end(), bytes.begin(), bytes.end());
}
inline void append(std::vector<std::uint8_t>& record, std::string_view text) {
  append(record, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}
inline void append_number(std::vector<std::uint8_t>& record, std::uint64_t number, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    record.push_back(static_cast<std::uint8_t>(number >> (8 * i)));
}

/// The record as base64url without padding. The record is wiped, since it may hold a secret.
[[nodiscard]] std::string to_base64url(std::vector<std::uint8_t>&& record);
/// Nothing if the text is empty or not base64url. The caller wipes a record that held a secret.
[[nodiscard]] std::optional<std::vector<std::uint8_t>> from_base64url(std::string_view text);
void wipe(std::vector<std::uint8_t>& record);

/// Takes fields off the front of a record. Once a field is missing, sound() is false and nothing more is taken.
class Fields {
 public:
  explicit Fields(std::span<const std::uint8_t> record) : rest_(record) {}
  void take(std::span<std::uint8_t> out) {
    if (rest_.size() < out.size()) sound_ = false;
    if (!sound_) return;
    std::copy_n(rest_.begin(), out.size(), out.begin());
    rest_ = rest_.subspan(out.size());
  }
  [[nodiscard]] std::uint64_t number(std::size_t bytes) {
    std::uint8_t digits[8] = {};
    take(std::span(digits).first(bytes));
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      number |= std::uint64_t{digits[i]} << (8 * i);
    return number;
  }
  [[nodiscard]] std::string text(std::size_t bytes) {
    std::string text(std::min(bytes, rest_.size()), '\0');
    if (text.size() != bytes) sound_ = false;
    take({reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
    return text;
  }
  /// True if no field was missing and nothing of the record is left.
  [[nodiscard]] bool ended() const { return sound_ && rest_.empty(); }
  [[nodiscard]] bool sound() const { return sound_; }

 private:
  std::span<const std::uint8_t> rest_;
  bool sound_ = true;
};

}  // namespace gossamer::peer
