#include "tools/ctl/run/output_queue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gossamer::ctl {
namespace {

/// False for a file: if it were opened again, it would get a second write position.
bool can_be_opened_again(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
}

}  // namespace

OutputQueue::OutputQueue(int fd) : fd_(fd) {
  if (can_be_opened_again(fd))
    own_fd_ = FileDescriptor(
        ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

void OutputQueue::add(std::string_view text) {
  if (!broken_) waiting_ += text;
}

void OutputQueue::write_some() {
  // A descriptor that poll calls writable takes this much without waiting.
  const ssize_t written = ::write(fd(), waiting_.data(), std::min<std::size_t>(waiting_.size(), PIPE_BUF));
  if (written >= 0) {
    waiting_.erase(0, static_cast<std::size_t>(written));
  } else if (errno != EAGAIN && errno != EINTR) {
    broken_ = true;
    waiting_.clear();
  }
}

bool OutputQueue::same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace gossamer::ctl
