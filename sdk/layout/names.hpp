// The names that jobs and tensors may have. The client checks them before it opens, and the daemon again before it
// trusts them. Names end up in logs, metrics, JSON and file names, so only characters that are harmless in all of these
// are allowed. Pure functions, for any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gossip/plain_text.hpp"
#include "sdk/layout/shared_memory.hpp"

namespace gossamer::layout {

/// A '.' in front would hide a folder of that name, and tools take a '-' for an option.
inline constexpr const char* job_name_form =
    "1 to 63 letters, digits, '.', '_' or '-', with neither '.' nor '-' in front";
static_assert(max_job_bytes == 63);

/// True for a name of that form.
[[nodiscard]] constexpr bool is_job_name(std::string_view name) {
  if (name.empty() || name.size() > max_job_bytes || name.front() == '.' || name.front() == '-') return false;
  for (const char c : name) {
    const bool letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter_or_digit && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

/// 1 to 255 bytes of plain text. Other nodes are told of the name, and accept only plain text.
[[nodiscard]] constexpr bool is_tensor_name(std::string_view name) {
  return !name.empty() && is_plain_text(name, max_name_bytes);
}

}  // namespace gossamer::layout
