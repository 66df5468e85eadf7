// Between fork and its end, the guard calls nothing that takes a lock or memory.

#include "tools/ctl/run/guard.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gossamer::ctl {

std::expected<Guard, std::string> Guard::start() {
  std::array<int, 2> ends{};
  const auto failed = [] {
    return std::unexpected(fmt::format(
        "the process that looks after the clients cannot be started: {}; look at ulimit -u", std::strerror(errno)));
  };
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return failed();
  const pid_t pid = ::fork();
  if (pid == 0) keep(ends[0]);
  ::close(ends[0]);
  FileDescriptor pipe(ends[1]);
  if (pid < 0) return failed();
  return Guard(pid, std::move(pipe));
}

void Guard::keep(int fd) {
  // A signal from the launcher's terminal or to its group must not end the guard.
  ::setsid();
  ::prctl(PR_SET_NAME, "gossamer-guard");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // Whoever waits for the end of the launcher's output must not have to wait for the guard.
  ::dup2(fd, 0);
  ::close_range(1, ~0U, 0);
  std::array<pid_t, max_guarded> groups{};  // 0: the place is free
  Message message{};
  while (true) {
    const ssize_t got = ::read(0, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof message)) break;
    const pid_t looked_for = message.guarded != 0 ? 0 : message.group;
    const auto place = std::ranges::find(groups, looked_for);
    if (place != groups.end()) *place = message.guarded != 0 ? message.group : 0;
  }
  for (const pid_t group : groups)
    if (group > 0) ::kill(-group, SIGKILL);
  ::_exit(0);
}

void Guard::tell(Message message) const {
  // If the guard was killed, its pipe has no reader; the kernel still ends the clients.
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), &message, sizeof message);
}

Guard::~Guard() {
  if (!pipe_) return;
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace gossamer::ctl
