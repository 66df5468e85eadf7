#include "daemon/report/gpu_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/gpus/health.hpp"

namespace gossamer::daemon {

GpuWatch::GpuWatch(asio::io_context& loop, const std::string& library, spdlog::logger& log)
    : monitor_({.library = library}), timer_(loop), log_(log) {
  if (!library.empty()) look();
}

gpus::GpuReport GpuWatch::report(const std::vector<JobStatus>& jobs) const {
  gpus::GpuReport report = monitor_.report();
  std::map<std::uint64_t, std::string> job_of;
  for (const JobStatus& job : jobs)
    for (const ClientStatus& client : job.processes)
      job_of[client.pid] = job.job;
  for (gpus::Gpu& gpu : report.gpus)
    for (gpus::GpuProcess& process : gpu.processes)
      if (const auto job = job_of.find(process.pid); job != job_of.end()) process.job = job->second;
  return report;
}

void GpuWatch::look() {
  say_news(monitor_.report());
  timer_.expires_after(gpu_log_period);
  timer_.async_wait([this](std::error_code error) {
    if (!error) look();
  });
}

/// Logs each warning once, and again only after the GPU was well or had another problem.
void GpuWatch::say_news(const gpus::GpuReport& report) {
  const bool stuck = report.state == "stuck";
  if (stuck && !said_stuck_) log_.warn("GPUs: {}", report.note);
  said_stuck_ = stuck;
  for (const gpus::Gpu& gpu : report.gpus) {
    const std::vector<gpus::Ailment> found = gpus::examine(gpu);
    // A larger count of the same error is not news.
    const std::string kind = found.empty() ? "" : found.front().text.substr(0, found.front().text.rfind(','));
    std::string& said = said_[gpu.uuid];
    if (kind == said) continue;
    said = kind;
    if (found.empty()) {
      log_.info("GPU {} ({}) is sound again", gpu.index, gpu.uuid);
    } else {
      log_.warn("GPU {} ({}, {}) is {}: {}; {}", gpu.index, gpu.name, gpu.uuid, name_of(found.front().health),
                found.front().text, found.front().advice);
    }
  }
}

}  // namespace gossamer::daemon
