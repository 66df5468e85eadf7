// The files of checkpoints on the disk: a new file that appears whole or not at all, and an old file to read from.
//
// Every call may block for as long as the disk does, so the daemon never makes it on the loop's thread. Failures are
// values: each is a text with the file's path, the cause, and what to do. One owner, one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::checkpoint {

/// Says what could not be done with a file, why (an errno), and what to do about it.
[[nodiscard]] std::string failed(const std::filesystem::path& path, const char* what, int error);

/// A file that is written under another name and gets its own when it is complete and on the disk. It is removed if it
/// is not finished.
class NewFile {
 public:
  /// `path`'s folder exists. Until finish() the file is `partial` in that folder; a file that a killed process left
  /// there is overwritten. Fails if the disk has no room for `size_bytes`, which are reserved where the file system
  /// can.
  [[nodiscard]] static std::expected<NewFile, std::string> begin(std::filesystem::path path, const std::string& partial,
                                                                 std::uint64_t size_bytes);
  NewFile(NewFile&&) = default;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  [[nodiscard]] std::expected<void, std::string> write_at(std::span<const std::byte> bytes, std::uint64_t offset);
  /// Brings everything to the disk, and then renames the file to `path` in the same folder. An older file there is
  /// replaced.
  [[nodiscard]] std::expected<void, std::string> finish(const std::filesystem::path& path);
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_; }

 private:
  explicit NewFile(std::filesystem::path partial) : partial_(std::move(partial)) {}
  std::filesystem::path partial_;
  FileDescriptor fd_;  // invalid once the file is finished or moved from
  std::uint64_t unsynced_bytes_ = 0;
};

class OldFile {
 public:
  /// Fails if it is not an ordinary file.
  [[nodiscard]] static std::expected<OldFile, std::string> open(const std::filesystem::path& path);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Reads all of `bytes`. Fails also if the file has become shorter.
  [[nodiscard]] std::expected<void, std::string> read_at(std::span<std::byte> bytes, std::uint64_t offset) const;

 private:
  OldFile(std::filesystem::path path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace gossamer::checkpoint
