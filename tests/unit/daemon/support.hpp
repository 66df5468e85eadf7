// What the daemon's tests share: a folder of their own, a loop turned until something is true, a log that is read back.

#pragma once

#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "temporary_folder.hpp"

namespace gossamer::daemon::test {

using gossamer::TemporaryFolder;

inline void write_file(const std::filesystem::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

inline std::string read_file(const std::filesystem::path& file) {
  std::ostringstream content;
  content << std::ifstream(file, std::ios::binary).rdbuf();
  return content.str();
}

/// Turns the loop until `condition` holds; false if it does not within a generous time.
template <class Condition>
[[nodiscard]] bool run_until(asio::io_context& loop, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// A logger whose lines a test can look at.
struct TestLog {
  std::ostringstream text;
  spdlog::logger logger{"test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)};
};

[[nodiscard]] inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

}  // namespace gossamer::daemon::test
