#include "daemon/system/unix_socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "sdk/layout/socket_path.hpp"

namespace gossamer::daemon {
namespace {

constexpr int backlog = 64;
constexpr mode_t socket_mode = 0660;

std::unexpected<std::string> failed(const std::filesystem::path& path, const char* what) {
  return std::unexpected(fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

/// Removes a socket file at which nobody answers. The caller has locked the folder, so that two daemons that start at
/// the same time do not both succeed.
std::expected<void, std::string> make_way(const std::filesystem::path& path, const sockaddr_un& address, int type) {
  struct stat file {};
  if (::lstat(path.c_str(), &file) != 0) {
    if (errno == ENOENT) return {};
    return failed(path, "cannot be examined");
  }
  if (!S_ISSOCK(file.st_mode))
    return std::unexpected(
        fmt::format("{}: exists and is not a socket; remove it, or set [node] socket_dir to another "
                    "folder",
                    path.string()));
  const FileDescriptor probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return failed(path, "no socket can be made");
  const bool answered = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (answered || errno != ECONNREFUSED)
    return std::unexpected(
        fmt::format("{}: another program answers here; stop the other gossamerd, or give this one "
                    "a [node] socket_dir of its own",
                    path.string()));
  if (::unlink(path.c_str()) != 0) return failed(path, "is left from an earlier run and cannot be removed");
  return {};
}

}  // namespace

std::expected<UnixSocket, std::string> UnixSocket::listen(const std::filesystem::path& path, int type) {
  const std::expected<sockaddr_un, std::string> address = layout::socket_address(path.string());
  if (!address) return std::unexpected(address.error() + ": set [node] socket_dir to a shorter one");
  const std::filesystem::path folder = path.parent_path();
  const FileDescriptor folder_lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_lock) return failed(folder, "cannot be opened; create it, or set [node] socket_dir to another folder");
  ::flock(folder_lock.get(), LOCK_EX);  // on a file system without locks only make_way() protects

  if (auto clear = make_way(path, *address, type); !clear) return std::unexpected(std::move(clear.error()));
  FileDescriptor fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed(path, "no socket can be made");
  ::fchmod(fd.get(), socket_mode);  // on Linux the file is made with these rights, less the umask
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return failed(path, "cannot be created; set [node] socket_dir to a folder that can be written");
  struct stat file {};
  if (::chmod(path.c_str(), socket_mode) != 0 || ::lstat(path.c_str(), &file) != 0) {
    const auto problem = failed(path, "its rights cannot be set");
    ::unlink(path.c_str());
    return problem;
  }
  UnixSocket socket(std::move(fd), path, type, file.st_ino);
  if (::listen(socket.get(), backlog) != 0) return failed(path, "cannot be listened on");
  return socket;
}

bool UnixSocket::file_in_place() const {
  struct stat file {};
  return ::lstat(path_.c_str(), &file) == 0 && file.st_ino == inode_;
}

std::expected<bool, std::string> UnixSocket::listen_again(std::optional<UnixSocket>& listening,
                                                          asio::posix::stream_descriptor& acceptor,
                                                          spdlog::logger& log) {
  if (listening->file_in_place()) return false;
  auto again = listen(listening->path_, listening->type_);
  if (!again) return std::unexpected(std::move(again.error()));
  acceptor.release();  // cancels the wait on it
  listening.emplace(std::move(*again));
  acceptor.assign(listening->get());
  log.warn("{} was removed or replaced: listening there again; who is connected goes on", listening->path_.string());
  return true;
}

UnixSocket::~UnixSocket() {
  if (fd_ && file_in_place()) ::unlink(path_.c_str());
}

}  // namespace gossamer::daemon
