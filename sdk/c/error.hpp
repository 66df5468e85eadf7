// How failures travel inside the client library: values with a status of the C ABI and a message for people.
// Any thread.

#pragma once

#include <gossamer.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace gossamer::client {

struct ClientError {
  gossamer_status status;
  std::string message;  ///< what is wrong and what to do
};

template <class T>
using Result = std::expected<T, ClientError>;

[[nodiscard]] inline std::unexpected<ClientError> fail(gossamer_status status, std::string message) {
  return std::unexpected(ClientError{status, std::move(message)});
}

/// Copies as much of `text` as fits, and ends it with a zero. `target` may be null.
inline void copy_text(std::string_view text, char* target, std::size_t target_bytes) {
  if (target == nullptr || target_bytes == 0) return;
  const std::size_t length = std::min(text.size(), target_bytes - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

/// The error of a system call that has just failed: `what` could not be done, and errno.
[[nodiscard]] inline std::unexpected<ClientError> fail_errno(const std::string& what) {
  return fail(GOSSAMER_SYSTEM_ERROR, what + ": " + std::strerror(errno));
}

}  // namespace gossamer::client
