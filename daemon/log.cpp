// Sinks and formats of log.hpp. spdlog's exceptions stop here.

#include "daemon/log.hpp"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>

#include <cstdlib>

namespace gossamer::daemon {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      break;
  }
  return spdlog::level::err;
}

/// The syslog severity of a message, as sd-daemon(3) has it: "<6>" for information and so on.
class SeverityFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& to) override {
    const std::string_view severity = message.level >= spdlog::level::critical ? "<2>"
                                      : message.level == spdlog::level::err    ? "<3>"
                                      : message.level == spdlog::level::warn   ? "<4>"
                                      : message.level == spdlog::level::info   ? "<6>"
                                                                               : "<7>";
    to.append(severity.data(), severity.data() + severity.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<SeverityFlag>();
  }
};

/// systemd sets JOURNAL_STREAM to the device and inode of the pipe it reads; the variable may be inherited by children
/// whose standard error goes elsewhere.
bool journal_reads_stderr() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  return stream != nullptr && ::fstat(2, &info) == 0 && fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

constexpr const char* dated_line = "%Y-%m-%d %H:%M:%S.%e %-7l %v";

spdlog::sink_ptr stderr_sink() {
  if (!journal_reads_stderr()) {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %v");
    return sink;
  }
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<SeverityFlag>('*').set_pattern("%*%v");
  sink->set_formatter(std::move(formatter));
  return sink;
}

std::expected<spdlog::sink_ptr, std::string> make_sink(const std::filesystem::path& file) {
  if (file.empty()) return stderr_sink();
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
    sink->set_pattern(dated_line);
    return sink;
  } catch (const spdlog::spdlog_ex& error) {
    return std::unexpected(fmt::format("{}: cannot be written: {}; set [log] file to another file or to \"\"",
                                       file.string(), error.what()));
  }
}

}  // namespace

std::expected<Log, std::string> Log::open(const LogOptions& options) {
  std::expected<spdlog::sink_ptr, std::string> sink = make_sink(options.file);
  if (!sink) return std::unexpected(std::move(sink.error()));
  Log log;
  log.file_ = options.file;
  log.recent_ = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(recent_log_lines);
  log.recent_->set_pattern(dated_line);
  log.sink_ =
      std::make_shared<spdlog::sinks::dist_sink_mt>(std::vector<spdlog::sink_ptr>{std::move(*sink), log.recent_});
  log.logger_ = std::make_shared<spdlog::logger>("gossamerd", log.sink_);
  log.logger_->flush_on(spdlog::level::info);
  log.logger_->set_error_handler([](const std::string&) {});  // a full disk loses lines, nothing else
  log.set_level(options.level);
  return log;
}

void Log::set_level(LogLevel level) {
  logger_->set_level(to_spdlog(level));
}

std::expected<void, std::string> Log::reopen() {
  if (file_.empty()) return {};
  std::expected<spdlog::sink_ptr, std::string> sink = make_sink(file_);
  if (!sink) return std::unexpected(std::move(sink.error()));
  sink_->set_sinks({std::move(*sink), recent_});
  return {};
}

}  // namespace gossamer::daemon
