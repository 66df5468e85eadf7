#include "daemon/log/journal_sink.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/stat.h>

// Without this, the fields CODE_FILE and CODE_LINE of every entry would name this file.
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/log/log_fields.hpp"

namespace gossamer::daemon {
namespace {

class JournalSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const LogFields about = fields_of(text);
    const char severity = syslog_severity(message.level);
    std::vector<std::string> fields = {fmt::format("MESSAGE={}", text), fmt::format("PRIORITY={}", severity),
                                       "SYSLOG_IDENTIFIER=gossamerd"};
    if (!about.job.empty()) fields.push_back(fmt::format("GOSSAMER_JOB={}", about.job));
    if (!about.node.empty()) fields.push_back(fmt::format("GOSSAMER_NODE={}", about.node));
    std::vector<iovec> parts;
    parts.reserve(fields.size());
    for (std::string& field : fields)
      parts.push_back({field.data(), field.size()});
    if (sd_journal_sendv(parts.data(), static_cast<int>(parts.size())) >= 0) return;
    const std::string line = fmt::format("<{}>{}\n", severity, text);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
  void flush_() override {}
};

}  // namespace

/// systemd sets JOURNAL_STREAM to the device and inode of the pipe that it reads. A child may inherit the variable
/// while its standard error goes elsewhere.
bool journal_reads_stderr() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  return stream != nullptr && ::fstat(2, &info) == 0 && fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

char syslog_severity(spdlog::level::level_enum level) {
  return level >= spdlog::level::critical ? '2'
         : level == spdlog::level::err    ? '3'
         : level == spdlog::level::warn   ? '4'
         : level == spdlog::level::info   ? '6'
                                          : '7';
}

spdlog::sink_ptr make_journal_sink() {
  return std::make_shared<JournalSink>();
}

}  // namespace gossamer::daemon
