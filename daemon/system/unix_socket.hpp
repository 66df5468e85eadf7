// A listening Unix socket with its file, which replaces no socket that is in use and is removed when it is closed.
//
// The client listener and the control server use it at start-up, on the main thread. Invariants: the file is ours from
// bind() to the destructor; a socket file is replaced only if nobody answers at it.

#pragma once

#include <sys/types.h>

#include <expected>
#include <filesystem>
#include <string>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

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
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  UnixSocket(FileDescriptor fd, std::filesystem::path path, ino_t inode)
      : fd_(std::move(fd)), path_(std::move(path)), inode_(inode) {}

  FileDescriptor fd_;
  std::filesystem::path path_;
  ino_t inode_;  // the file's inode, so that a successor's file is not removed
};

}  // namespace gossamer::daemon
