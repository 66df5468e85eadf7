// Reads small secret files, checking their permissions, and writes them whole or not at all.
//
// Used by peer/keys/ only. Any thread.

#pragma once

#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace gossamer::peer {

inline constexpr std::size_t max_key_file_bytes = 8192;

/// Text of a secret file, wiped on destruction.
class SecretText {
 public:
  explicit SecretText(std::string text) : text_(std::move(text)) {}
  SecretText(SecretText&& other) noexcept;
  SecretText& operator=(SecretText&&) = delete;
  ~SecretText();
  [[nodiscard]] std::string_view view() const { return text_; }

 private:
  std::string text_;
};

/// The file's content; nothing if there is no such file. An error if it is no regular file, belongs to another user,
/// can be read or written by others, is too large or cannot be read.
[[nodiscard]] std::expected<std::optional<SecretText>, std::string> read_secret_file(const std::filesystem::path& path);

/// Creates `path` with mode 0600: a temporary file beside it, fsync, link, fsync of the folder. False if the file
/// exists already: it is left as it is. Never leaves a half-written file under its name.
[[nodiscard]] std::expected<bool, std::string> create_secret_file(const std::filesystem::path& path,
                                                                  std::string_view text);

/// Writes the file in the same way, but replaces an existing one.
[[nodiscard]] std::expected<void, std::string> replace_secret_file(const std::filesystem::path& path,
                                                                   std::string_view text);

}  // namespace gossamer::peer
