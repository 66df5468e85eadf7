#include "daemon/system/state_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "gossip/check.hpp"

namespace gossamer::daemon {
namespace {

/// The advice on an error of the file system.
const char* advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space, or set [node] state_dir to another disk";
    case EROFS:
    case EACCES:
    case EPERM:
      return "; set [node] state_dir to a folder that this user can write";
    default:
      return "";
  }
}

/// Is written where there is nothing to write. A file without a byte has lost its content.
constexpr std::string_view nothing = "\n";

std::string failed(const std::filesystem::path& path, const char* what, int error) {
  return fmt::format("{}: {}: {}{}", path.string(), what, std::strerror(error), advice(error));
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string holder(int fd) {
  char text[32] = {};
  const ssize_t got = ::pread(fd, text, sizeof text - 1, 0);
  const std::string_view digits(
      text,
      got > 0 ? std::min(std::string_view(text).find_first_not_of("0123456789"), static_cast<std::size_t>(got)) : 0);
  return digits.empty() ? "another process" : fmt::format("process {}", digits);
}

}  // namespace

std::expected<StateFolder, std::string> StateFolder::open(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return std::unexpected(failed(path, "the state folder cannot be made", errno));
  const std::filesystem::path lock_path = path / lock_name;
  FileDescriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return std::unexpected(failed(lock_path, "the state folder cannot be written", errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return std::unexpected(failed(lock_path, "cannot be locked", errno));
    return std::unexpected(
        fmt::format("{}: this state folder is in use by {}; stop that gossamerd, or give this one a "
                    "[node] state_dir of its own",
                    path.string(), holder(lock.get())));
  }
  // The process id is for people. Writing it and bringing it to the disk shows that the folder is usable.
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || !write_all(lock.get(), pid) || ::fsync(lock.get()) != 0)
    return std::unexpected(failed(lock_path, "the state folder cannot be written", errno));
  return StateFolder(path, std::move(lock));
}

std::vector<std::string> StateFolder::empty_files() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    std::error_code ignored;
    const bool unfinished = entry.path().extension() == ".new";  // store() was ended half-way, and begins anew
    if (!unfinished && entry.is_regular_file(ignored) && entry.file_size(ignored) == 0)
      names.push_back(entry.path().filename());
  }
  return names;
}

std::expected<std::optional<std::string>, std::string> StateFolder::load(std::string_view name) const {
  GOSSAMER_CHECK(!name.empty() && name.find('/') == std::string_view::npos);
  const std::filesystem::path file = path_ / name;
  const FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // opening a pipe must not wait
  if (!fd && errno == ENOENT) return std::nullopt;
  if (!fd) return std::unexpected(failed(file, "cannot be read", errno));
  struct stat kind {};
  if (::fstat(fd.get(), &kind) != 0) return std::unexpected(failed(file, "cannot be read", errno));
  if (!S_ISREG(kind.st_mode))
    return std::unexpected(fmt::format("{}: is no ordinary file; move it away from there", file.string()));
  if (kind.st_uid != ::geteuid() && kind.st_uid != 0)
    return std::unexpected(
        fmt::format("{}: belongs to another user; change its owner if it is this node's, or move it "
                    "away from there",
                    file.string()));
  std::string content(max_file_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = ::read(fd.get(), content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(failed(file, "cannot be read", errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > max_file_bytes)
    return std::unexpected(
        fmt::format("{}: has more than {} bytes, so it is not a file of this daemon", file.string(), max_file_bytes));
  content.resize(size);
  return content == nothing ? std::string() : content;
}

std::expected<void, std::string> StateFolder::store(std::string_view name, std::string_view content) const {
  GOSSAMER_CHECK(!name.empty() && name.find('/') == std::string_view::npos && content.size() <= max_file_bytes);
  const std::filesystem::path file = path_ / name;
  const std::filesystem::path fresh = path_ / fmt::format("{}.new", name);
  const FileDescriptor fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return std::unexpected(failed(fresh, "cannot be written", errno));
  if (!write_all(fd.get(), content.empty() ? nothing : content) || ::fsync(fd.get()) != 0 ||
      ::rename(fresh.c_str(), file.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    return std::unexpected(failed(file, "cannot be written", error));
  }
  const FileDescriptor folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) ::fsync(folder.get());  // the rename then survives a power cut, where the file system allows it
  return {};
}

}  // namespace gossamer::daemon
