// A listening Unix socket with its file, which replaces no socket that is in use and is removed when it is closed.
//
// The daemon's three listeners use it: on the main thread at start-up, and later on the loop's. Invariants: the file is
// ours from bind() to the destructor; a socket file is replaced only if nobody answers at it.

#pragma once

#include <spdlog/logger.h>
#include <sys/types.h>

#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

/// How often a listener checks whether its file is still there.
inline constexpr std::chrono::milliseconds socket_look_period{5000};

class UnixSocket {
 public:
  /// `type` is SOCK_STREAM or SOCK_SEQPACKET. The socket does not block; owner and group may connect. The folder
  /// exists.
  [[nodiscard]] static std::expected<UnixSocket, std::string> listen(const std::filesystem::path& path, int type);
  UnixSocket(UnixSocket&& other) noexcept = default;
  UnixSocket& operator=(UnixSocket&&) = delete;
  ~UnixSocket();

  [[nodiscard]] int get() const { return fd_.get(); }
  /// Whether the file is still where it was made. Without the file nobody can connect any more.
  [[nodiscard]] bool file_in_place() const;
  /// Listens at the same path again if the file is gone. True: `acceptor` has the new socket, and the caller has to
  /// wait for connections there.
  [[nodiscard]] static std::expected<bool, std::string> listen_again(std::optional<UnixSocket>& listening,
                                                                     asio::posix::stream_descriptor& acceptor,
                                                                     spdlog::logger& log);

 private:
  UnixSocket(FileDescriptor fd, std::filesystem::path path, int type, ino_t inode)
      : fd_(std::move(fd)), path_(std::move(path)), type_(type), inode_(inode) {}

  FileDescriptor fd_;
  std::filesystem::path path_;
  int type_;
  ino_t inode_;  // the file's inode, so that a successor's file is not removed
};

}  // namespace gossamer::daemon
