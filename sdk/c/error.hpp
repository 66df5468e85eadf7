// How failures travel inside the client library: values with a status of the C ABI and a message for people.
// Any thread.

#pragma once

#include <gossamer.h>

#include <cerrno>
#include <cstring>
#include <expected>
#include <string>
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

/// The error of a system call that has just failed: `what` could not be done, and errno.
[[nodiscard]] inline std::unexpected<ClientError> fail_errno(const std::string& what) {
  return fail(GOSSAMER_SYSTEM_ERROR, what + ": " + std::strerror(errno));
}

}  // namespace gossamer::client
