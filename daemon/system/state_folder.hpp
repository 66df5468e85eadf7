// The folder in which a node keeps what must survive a restart, above all its keys. One daemon at a time owns it.
//
// main opens it before anything else that has state. load() and store() are called from the loop's thread, rarely, and
// block for as long as the disk does. Invariants: the object holds the folder's lock as long as it lives; a file is
// either the old one or the new one, whole, whatever happens during store(). An error at open() ends the start. The
// caller reports a later error: training never depends on the disk.

#pragma once

#include <cstddef>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

class StateFolder {
 public:
  static constexpr const char* lock_name = "lock";
  static constexpr std::size_t max_file_bytes = 1u << 20;

  /// Creates the folder (mode 0700) and its parents if need be, locks it, and checks that it can be written. Errors say
  /// what to do; the error for a locked folder names the process that holds it.
  [[nodiscard]] static std::expected<StateFolder, std::string> open(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// The files without a byte in them, by name. store() writes a line's end instead of nothing, so such a file is of an
  /// older daemon, or it has lost its content, for instance in a power cut.
  [[nodiscard]] std::vector<std::string> empty_files() const;
  /// The content of a file, or nothing if there is none. `name` has no '/'. A file of another user is refused, unless
  /// that is root.
  [[nodiscard]] std::expected<std::optional<std::string>, std::string> load(std::string_view name) const;
  /// Replaces a file (mode 0600): writes it beside the old one, brings it to the disk, and renames it.
  [[nodiscard]] std::expected<void, std::string> store(std::string_view name, std::string_view content) const;

 private:
  StateFolder(std::filesystem::path path, FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::filesystem::path path_;
  FileDescriptor lock_;
};

}  // namespace gossamer::daemon
