// What waits to be written to the launcher's own standard output or error, which may be slow, stand still or have no
// reader any more.
//
// The launcher must hear signals while its output stands still: nothing here waits. One thread.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gossamer::ctl {

/// With more waiting nothing is read from the clients, who then wait as they would without a launcher.
inline constexpr std::size_t max_waiting_bytes = 1u << 20;

class OutputQueue {
 public:
  /// `fd` stays the caller's.
  explicit OutputQueue(int fd);
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;
  ~OutputQueue();

  /// To be polled for POLLOUT while something waits.
  [[nodiscard]] int fd() const { return own_fd_ >= 0 ? own_fd_ : fd_; }
  void add(std::string_view text);
  /// After poll has said that it can be written to.
  void write_some();

  [[nodiscard]] bool is_empty() const { return waiting_.empty(); }
  [[nodiscard]] bool is_full() const { return waiting_.size() >= max_waiting_bytes; }
  /// Nobody reads it any more: what is added is dropped.
  [[nodiscard]] bool is_broken() const { return broken_; }
  /// Both write to the same pipe, terminal or file.
  [[nodiscard]] static bool same_file(int a, int b);

 private:
  int fd_;
  int own_fd_ = -1;  // the same pipe or terminal opened once more, so that not waiting is this process' affair only
  std::string waiting_;
  bool broken_ = false;
};

}  // namespace gossamer::ctl
