#include "peer/keys/key_file.hpp"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gossamer::peer {
namespace {

std::string error_text(int error) {
  return std::system_category().message(error);
}

std::string hint(int error) {
  if (error == ENOSPC || error == EDQUOT) return ": free some space there and start again";
  if (error == EACCES || error == EPERM || error == EROFS) {
    return ": the folder must be writable by the user that runs this program";
  }
  return "";
}

/// A descriptor closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

std::optional<std::string> complaint_about(const struct stat& info, const std::string& name) {
  if (!S_ISREG(info.st_mode)) return name + " is not a regular file";
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return name + " belongs to another user: change its owner";
  if ((info.st_mode & 077) != 0) {
    return name + " can be read or written by other users: if that was a mistake run 'chmod 600 " + name +
           "', otherwise replace the key";
  }
  if (info.st_size > static_cast<off_t>(max_key_file_bytes)) return name + " is too large to be a key file";
  return std::nullopt;
}

/// Returns 0 or the error.
int write_and_sync(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(fd) == 0 ? 0 : errno;
}

/// Moves the finished temporary file to its place. Returns 0 or the error.
using Place = int (*)(const char* temporary, const char* name);
/// link() fails if the file exists, where rename() would replace it. So one key wins if two programs start at once.
int place_new(const char* temporary, const char* name) {
  const int problem = ::link(temporary, name) == 0 ? 0 : errno;
  ::unlink(temporary);
  return problem;
}
int place_over(const char* temporary, const char* name) {
  if (::rename(temporary, name) == 0) return 0;
  const int problem = errno;
  ::unlink(temporary);
  return problem;
}

/// False if `place` found that a file of this name exists.
std::expected<bool, std::string> write_secret_file(const std::filesystem::path& path, std::string_view text,
                                                   Place place) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const std::string name = path.string();
  const auto failed = [&](const char* what, int error) {
    return std::unexpected(std::string("cannot ") + what + " " + name + ": " + error_text(error) + hint(error));
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return std::unexpected("cannot create the folder " + folder.string() + ": " + error.message());

  std::string temporary = name + ".XXXXXX";
  const Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (!file) return failed("create", errno);
  if (const int problem = write_and_sync(file.get(), text); problem != 0) {
    ::unlink(temporary.c_str());
    return failed("write", problem);
  }
  const int problem = place(temporary.c_str(), name.c_str());
  if (problem != 0 && problem != EEXIST) return failed("write", problem);
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory && ::fsync(directory.get()) != 0) return failed("write", errno);
  return problem == 0;
}

}  // namespace

SecretText::SecretText(SecretText&& other) noexcept : text_(other.text_) {
  sodium_memzero(other.text_.data(), other.text_.size());
}
SecretText::~SecretText() {
  sodium_memzero(text_.data(), text_.size());
}

std::expected<std::optional<SecretText>, std::string> read_secret_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Descriptor file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<SecretText>{};
    return std::unexpected("cannot open " + name + ": " + error_text(errno));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return std::unexpected("cannot look at " + name + ": " + error_text(errno));
  if (auto complaint = complaint_about(info, name)) return std::unexpected(*complaint);

  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected("cannot read " + name + ": " + error_text(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return std::optional<SecretText>(SecretText(std::move(text)));
}

std::expected<bool, std::string> create_secret_file(const std::filesystem::path& path, std::string_view text) {
  return write_secret_file(path, text, place_new);
}

std::expected<void, std::string> replace_secret_file(const std::filesystem::path& path, std::string_view text) {
  // If the path is a link, the file that it points to is replaced.
  std::error_code not_there;
  const std::filesystem::path target = std::filesystem::canonical(path, not_there);
  const auto written = write_secret_file(not_there ? path : target, text, place_over);
  if (!written) return std::unexpected(written.error());
  return {};
}

}  // namespace gossamer::peer
