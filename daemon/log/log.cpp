// Sinks and formats of log.hpp. spdlog's exceptions stop here.

#include "daemon/log/log.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "daemon/log/journal_sink.hpp"
#include "daemon/log/log_fields.hpp"
#include "daemon/log/repeat_filter.hpp"

namespace gossamer::daemon {
namespace {

// The numbers of LogLevel are spdlog's.
static_assert(static_cast<int>(LogLevel::trace) == spdlog::level::trace);
static_assert(static_cast<int>(LogLevel::error) == spdlog::level::err);

/// Formats a line for programs, as JSON or key=value: time, level, the job and the node that the line is about, and the
/// message.
class FieldsFormatter : public spdlog::formatter {
 public:
  FieldsFormatter(LogFormat form, bool severity) : form_(form), severity_(severity) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& to) override {
    const auto time = std::chrono::floor<std::chrono::milliseconds>(message.time);
    const auto ms = time.time_since_epoch().count() % 1000;
    const std::string_view level(spdlog::level::to_string_view(message.level).data(),
                                 spdlog::level::to_string_view(message.level).size());
    const LogFields about = fields_of({message.payload.data(), message.payload.size()});
    std::string line = severity_ ? fmt::format("<{}>", syslog_severity(message.level)) : "";
    const auto field = [&](std::string_view name, std::string_view value) {
      const std::string quoted = nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      if (form_ == LogFormat::json) {
        line += fmt::format("{}\"{}\":{}", name == "time" ? "{" : ",", name, quoted);
      } else {
        const bool plain =
            !value.empty() && value.size() + 2 == quoted.size() && value.find_first_of(" =") == std::string_view::npos;
        line += fmt::format("{}{}={}", name == "time" ? "" : " ", name, plain ? value : std::string_view(quoted));
      }
    };
    field("time",
          fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(time)), ms));
    field("level", level);
    if (!about.job.empty()) field("job", about.job);
    if (!about.node.empty()) field("node", about.node);
    field("message", about.message);
    line += form_ == LogFormat::json ? "}\n" : "\n";
    to.append(line.data(), line.data() + line.size());
  }
  [[nodiscard]] std::unique_ptr<formatter> clone() const override {
    return std::make_unique<FieldsFormatter>(form_, severity_);
  }

 private:
  LogFormat form_;
  bool severity_;
};

constexpr const char* logger_name = "gossamerd";
constexpr std::uint64_t news_burst = 30;  // lines of a kind within RepeatFilter::window
constexpr std::uint64_t warnings_burst = 5;

/// Keeps the log from filling the disk. Of errors it leaves out only those that are repeated; what is below "info" is
/// logged for somebody who has asked for it. News and warnings are bounded apart, so that programs that come and go
/// again and again, and make news each time, drive no warning and no decision out of the log.
class CalmSink : public spdlog::sinks::dist_sink_mt {
  using Base = spdlog::sinks::dist_sink_mt;

 public:
  explicit CalmSink(std::vector<spdlog::sink_ptr> sinks) : Base(std::move(sinks)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    tell_held_back(message.time);
    if (message.level >= spdlog::level::info && message.level <= spdlog::level::err) {
      Bound& bound = message.level == spdlog::level::info ? news_ : warnings_;
      if (!bound.filter.say({message.payload.data(), message.payload.size()}, message.time)) return;
      if (message.level != spdlog::level::err && !bound.budget.take(message.time)) return;
      if (const std::uint64_t left_out = bound.budget.take_left_out(); left_out > 0) {
        const std::string line =
            fmt::format("{} lines are left out here: the log takes {} at once, and {} a second after that", left_out,
                        LineBudget::burst, LineBudget::per_s);
        Base::sink_it_({message.time, {}, message.logger_name, spdlog::level::warn, line});
      }
    }
    Base::sink_it_(message);
  }

  void flush_() override {
    tell_held_back(std::chrono::system_clock::now());
    Base::flush_();
  }

 private:
  void tell_held_back(RepeatFilter::Time now) {
    for (Bound* const bound : {&news_, &warnings_}) {
      for (const RepeatFilter::HeldBack& held_back : bound->filter.over(now)) {
        const std::string line = fmt::format("{} (and {} more like it within {} s)", held_back.line, held_back.count,
                                             RepeatFilter::window.count());
        Base::sink_it_({now, {}, logger_name, bound->level, line});
      }
    }
  }

  struct Bound {
    spdlog::level::level_enum level;
    RepeatFilter filter;
    LineBudget budget = {};
  };
  Bound news_{spdlog::level::info, RepeatFilter(news_burst)};
  Bound warnings_{spdlog::level::warn, RepeatFilter(warnings_burst)};
};

constexpr const char* dated_line = "%Y-%m-%d %H:%M:%S.%e %-7l %v";

spdlog::sink_ptr stderr_sink(LogFormat form) {
  const bool journal = journal_reads_stderr();
  if (form != LogFormat::text) {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_formatter(std::make_unique<FieldsFormatter>(form, journal));
    return sink;
  }
  if (journal) return make_journal_sink();
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-7l%$ %v");
  return sink;
}

std::expected<spdlog::sink_ptr, std::string> make_sink(const std::filesystem::path& file, LogFormat form) {
  if (file.empty()) return stderr_sink(form);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
    sink->set_pattern(dated_line);
    if (form != LogFormat::text) sink->set_formatter(std::make_unique<FieldsFormatter>(form, false));
    return sink;
  } catch (const spdlog::spdlog_ex& error) {
    return std::unexpected(fmt::format("{}: cannot be written: {}; set [log] file to another file or to \"\"",
                                       file.string(), error.what()));
  }
}

}  // namespace

std::expected<Log, std::string> Log::open(const LogOptions& options) {
  std::expected<spdlog::sink_ptr, std::string> sink = make_sink(options.file, options.format);
  if (!sink) return std::unexpected(std::move(sink.error()));
  Log log;
  log.file_ = options.file;
  log.format_ = options.format;
  log.recent_ = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(recent_log_lines);
  log.recent_->set_pattern(dated_line);
  log.sink_ = std::make_shared<CalmSink>(std::vector<spdlog::sink_ptr>{std::move(*sink), log.recent_});
  log.logger_ = std::make_shared<spdlog::logger>(logger_name, log.sink_);
  log.logger_->flush_on(spdlog::level::info);
  log.logger_->set_error_handler([](const std::string&) {});  // a full disk loses lines and does nothing worse
  log.set_level(options.level);
  return log;
}

void Log::set_level(LogLevel level) {
  logger_->set_level(static_cast<spdlog::level::level_enum>(level));
}

std::expected<void, std::string> Log::reopen() {
  if (file_.empty()) return {};
  std::expected<spdlog::sink_ptr, std::string> sink = make_sink(file_, format_);
  if (!sink) return std::unexpected(std::move(sink.error()));
  sink_->set_sinks({std::move(*sink), recent_});
  return {};
}

}  // namespace gossamer::daemon
