// A queue of data for the launcher's own standard output or error, which may be slow, stand still or have no reader any
// more.
//
// The launcher must hear signals while its output stands still, so nothing here waits. One thread.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::ctl {

/// While more than this is waiting, nothing is read from the clients. They then wait as they would without a launcher.
inline constexpr std::size_t max_waiting_bytes = 1u << 20;

class OutputQueue {
 public:
  /// `fd` stays the caller's.
  explicit OutputQueue(int fd);

  /// The caller polls this descriptor for POLLOUT while something waits.
  [[nodiscard]] int fd() const { return own_fd_ ? own_fd_.get() : fd_; }
  void add(std::string_view text);
  /// Call this after poll has said that the descriptor is writable.
  void write_some();

  [[nodiscard]] bool is_empty() const { return waiting_.empty(); }
  [[nodiscard]] bool is_full() const { return waiting_.size() >= max_waiting_bytes; }
  /// Whether nobody reads the output any more, so that added data are dropped.
  [[nodiscard]] bool is_broken() const { return broken_; }
  /// Whether both are the same pipe, terminal or file.
  [[nodiscard]] static bool same_file(int a, int b);

 private:
  int fd_;
  FileDescriptor own_fd_;  // the same pipe or terminal, opened again so that O_NONBLOCK concerns only this process
  std::string waiting_;
  bool broken_ = false;
};

}  // namespace gossamer::ctl
