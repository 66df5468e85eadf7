// A daemon of a local cluster as a process: found by its socket, started, told to end.
//
// There is no file with a process id that could be out of date: the kernel says which process listens at the control
// socket. For one thread at a time. Only ended_within() blocks for longer than a moment.

#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::ctl {

/// A running daemon. It is held by a descriptor, because another process may get the number of a daemon that has ended.
class LocalDaemon {
 public:
  /// The daemon that listens at this socket. Nothing if none does.
  [[nodiscard]] static std::optional<LocalDaemon> at(const std::filesystem::path& control_socket);
  /// A process that start_daemon() has started. Nothing if it has ended.
  [[nodiscard]] static std::optional<LocalDaemon> of(pid_t pid);

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Whether the signal could be sent.
  bool signal(int number) const;
  [[nodiscard]] bool ended_within(std::chrono::milliseconds time) const;

 private:
  LocalDaemon(pid_t pid, FileDescriptor process) : pid_(pid), process_(std::move(process)) {}

  pid_t pid_;
  FileDescriptor process_;
};

/// The gossamerd to start: beside this program, or else in PATH. An error says where it was looked for.
[[nodiscard]] std::expected<std::filesystem::path, std::string> daemon_program();

/// Starts a daemon in a session of its own, so that it outlives the terminal. Its log is appended to the file `log`.
[[nodiscard]] std::expected<pid_t, std::string> start_daemon(const std::filesystem::path& program,
                                                             const std::filesystem::path& configuration,
                                                             const std::filesystem::path& log);

}  // namespace gossamer::ctl
