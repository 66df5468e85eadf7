// The files of the status page, daemon/report/page/, which the build puts into the program.

#pragma once

#include <span>
#include <string_view>

namespace gossamer::daemon {

struct PageFile {
  std::string_view path;  ///< below the server's root; "/" is index.html
  const char* type;
  std::string_view text;
};

[[nodiscard]] std::span<const PageFile> page_files();

}  // namespace gossamer::daemon
