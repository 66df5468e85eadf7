// The daemon's log: made in main, handed down as an spdlog::logger&.
//
// To standard error it writes for whoever reads there: with time and level for a person, or, where systemd collects it,
// into the journal (journal_sink.hpp). Any thread may log; set_level() and reopen() are the main thread's. Other
// formats have fields for programs: time in UTC, level, the job and the node that a line is about (log_fields.hpp), the
// message. Warnings and errors of which many are alike are said a few times a minute, with how many more there were
// (repeat_filter.hpp). A log that cannot be written, because the disk is full for one, never stops the daemon.

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

/// Lines of the log that are kept in memory.
inline constexpr std::size_t recent_log_lines = 200;

class Log {
 public:
  [[nodiscard]] static std::expected<Log, std::string> open(const LogOptions& options);

  [[nodiscard]] spdlog::logger& logger() const { return *logger_; }
  void set_level(LogLevel level);
  /// Opens the file again, for when it was renamed to be rotated. An error leaves the old one in use.
  [[nodiscard]] std::expected<void, std::string> reopen();
  /// The newest lines, the oldest of them first; at most recent_log_lines.
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
