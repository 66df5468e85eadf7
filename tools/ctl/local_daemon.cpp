#include "tools/ctl/local_daemon.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "sdk/layout/socket_path.hpp"

namespace gossamer::ctl {
namespace {

constexpr const char* daemon_name = "gossamerd";

/// The process that listens at the socket, or 0.
pid_t listener_at(const std::filesystem::path& path) {
  const auto address = layout::socket_address(path.string());
  if (!address) return 0;
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) return 0;
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 ? other.pid : 0;
}

bool is_program(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::optional<LocalDaemon> LocalDaemon::of(pid_t pid) {
  // glibc 2.36 declares the functions for C only.
  FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return std::nullopt;
  return LocalDaemon(pid, std::move(process));
}

std::optional<LocalDaemon> LocalDaemon::at(const std::filesystem::path& control_socket) {
  const pid_t pid = listener_at(control_socket);
  if (pid <= 0) return std::nullopt;
  auto daemon = of(pid);
  // The process still listens, so `pid` was still its number when of() opened it.
  return listener_at(control_socket) == pid ? std::move(daemon) : std::nullopt;
}

bool LocalDaemon::signal(int number) const {
  return ::syscall(SYS_pidfd_send_signal, process_.get(), number, nullptr, 0) == 0;
}

bool LocalDaemon::ended_within(std::chrono::milliseconds time) const {
  pollfd waited{.fd = process_.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  while ((ready = ::poll(&waited, 1, static_cast<int>(time.count()))) < 0 && errno == EINTR) {
  }
  if (ready > 0) ::waitpid(pid_, nullptr, WNOHANG);  // if it is this process's child
  return ready > 0;
}

std::expected<std::filesystem::path, std::string> daemon_program() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (const auto beside = own.parent_path() / daemon_name; !error && is_program(beside)) return beside;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const auto program = std::filesystem::path(folder) / daemon_name; !folder.empty() && is_program(program))
      return std::filesystem::absolute(program, error);
  return std::unexpected(
      fmt::format("there is no {} in {} or in PATH: install the package gossamer, or build it (ninja -C build {})",
                  daemon_name, own.parent_path().string(), daemon_name));
}

std::expected<pid_t, std::string> start_daemon(const std::filesystem::path& program,
                                               const std::filesystem::path& configuration,
                                               const std::filesystem::path& log) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  ::posix_spawn_file_actions_addchdir_np(&files, "/");  // so that the daemon keeps no disk from being unmounted
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::array<std::string, 3> words{program.string(), "--config", configuration.string()};
  std::array<char*, 4> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i)
    arguments[i] = const_cast<char*>(words[i].c_str());
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, program.c_str(), &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    return std::unexpected(fmt::format("{} cannot be started: {}", program.string(), std::strerror(error)));
  return pid;
}

}  // namespace gossamer::ctl
