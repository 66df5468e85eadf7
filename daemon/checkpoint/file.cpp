#include "daemon/checkpoint/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gossamer::checkpoint {
namespace {

/// Data are brought to the disk each time this much has been written. A full disk is noticed early, and pages that wait
/// for a slow disk do not fill the memory of other programs.
constexpr std::uint64_t sync_bytes = 64u << 20;

const char* advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space there, or choose a folder on another disk";
    case EFBIG:
      return "; raise the limit on the size of files (ulimit -f, or LimitFSIZE= of the unit)";
    case EROFS:
    case EACCES:
    case EPERM:
      return "; choose a folder that this user can write, or give it the right to";
    case EIO:
      return "; the disk is failing: look at the kernel's log (dmesg)";
    default:
      return "";
  }
}

}  // namespace

std::string failed(const std::filesystem::path& path, const char* what, int error) {
  return fmt::format("{}: {}: {}{}", path.string(), what, std::strerror(error), advice(error));
}

std::expected<NewFile, std::string> NewFile::begin(std::filesystem::path path, const std::string& partial,
                                                   std::uint64_t size_bytes) {
  const std::filesystem::path folder = path.parent_path();
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return std::unexpected(failed(folder, "cannot be written", errno));
  NewFile file(folder / partial);
  // A link or an old file in this place is replaced, not followed.
  if (::unlink(file.partial_.c_str()) != 0 && errno != ENOENT)
    return std::unexpected(failed(file.partial_, "cannot be written", errno));
  if (const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize; free_bytes < size_bytes) {
    return std::unexpected(
        fmt::format("{}: {} MiB are needed and {} MiB are free; free some space there, or choose a folder on another "
                    "disk",
                    folder.string(), (size_bytes >> 20) + 1, free_bytes >> 20));
  }
  file.fd_ = FileDescriptor(::open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.fd_) return std::unexpected(failed(file.partial_, "cannot be written", errno));
  // Not every file system can reserve space; there a full disk shows when it is written to.
  if (::fallocate(file.fd_.get(), 0, 0, static_cast<off_t>(size_bytes)) != 0 && errno != EOPNOTSUPP && errno != EINTR)
    return std::unexpected(failed(file.partial_, "cannot be written", errno));
  return file;
}

NewFile::~NewFile() {
  if (fd_) ::unlink(partial_.c_str());
}

std::expected<void, std::string> NewFile::write_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return std::unexpected(failed(partial_, "cannot be written", written < 0 ? errno : ENOSPC));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
    unsynced_bytes_ += static_cast<std::uint64_t>(written);
  }
  if (unsynced_bytes_ < sync_bytes) return {};
  unsynced_bytes_ = 0;
  if (::fdatasync(fd_.get()) != 0) return std::unexpected(failed(partial_, "cannot be brought to the disk", errno));
  return {};
}

std::expected<void, std::string> NewFile::finish(const std::filesystem::path& path) {
  if (::fsync(fd_.get()) != 0) return std::unexpected(failed(partial_, "cannot be brought to the disk", errno));
  // The file is read again only after a restart, if ever, so its pages leave the memory to those who train.
  ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (::rename(partial_.c_str(), path.c_str()) != 0) return std::unexpected(failed(path, "cannot be written", errno));
  fd_.reset();
  // The sync of the folder lets the rename survive a power cut. Where it is not possible, the file is still whole.
  const FileDescriptor folder(::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) ::fsync(folder.get());
  return {};
}

std::expected<OldFile, std::string> OldFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: a pipe that nobody writes to must not block us.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::unexpected(failed(path, "cannot be read", errno));
  OldFile file(path, std::move(fd));
  struct stat entry {};
  if (::fstat(file.fd_.get(), &entry) != 0) return std::unexpected(failed(path, "cannot be read", errno));
  if (!S_ISREG(entry.st_mode)) return std::unexpected(fmt::format("{}: is no ordinary file", path.string()));
  file.size_bytes_ = static_cast<std::uint64_t>(entry.st_size);
  return file;
}

std::expected<void, std::string> OldFile::read_at(std::span<std::byte> bytes, std::uint64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(failed(path_, "cannot be read", errno));
    if (got == 0) return std::unexpected(fmt::format("{}: ends before its data does", path_.string()));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace gossamer::checkpoint
