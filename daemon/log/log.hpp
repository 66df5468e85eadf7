// The daemon's log. It is made in main and handed down as an spdlog::logger&.
//
// On standard error, a person gets lines with time and level; where systemd collects standard error, the lines go into
// the journal (journal_sink.hpp). Any thread may log; only the main thread calls set_level() and reopen(). The other
// formats have fields for programs: time in UTC, level, the job and the node that a line is about (log_fields.hpp), and
// the message. Many warnings or errors that are alike are logged a few times a minute, with the number of those left
// out (repeat_filter.hpp), which is told with the next line or flush after the minute. A log that cannot be written,
// for instance because the disk is full, never stops the daemon.

#pragma once

#include <spdlog/logger.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "daemon/config/config.hpp"

namespace gossamer::daemon {

/// This many lines of the log are kept in memory.
inline constexpr std::size_t recent_log_lines = 200;

class Log {
 public:
  [[nodiscard]] static std::expected<Log, std::string> open(const LogOptions& options);

  [[nodiscard]] spdlog::logger& logger() const { return *logger_; }
  void set_level(LogLevel level);
  /// Opens the file again, after it was renamed by log rotation. On an error the old file stays in use.
  [[nodiscard]] std::expected<void, std::string> reopen();
  /// The newest lines, oldest first; at most recent_log_lines.
  [[nodiscard]] std::vector<std::string> recent() const { return recent_->last_formatted(); }

 private:
  Log() = default;

  std::filesystem::path file_;
  LogFormat format_ = LogFormat::text;
  std::shared_ptr<spdlog::sinks::dist_sink_mt> sink_;
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> recent_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace gossamer::daemon
