// The files of the status page, which are in the program: daemon/report/page/ as it was when it was built.

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
