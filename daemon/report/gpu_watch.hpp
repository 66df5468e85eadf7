// The daemon's view of the machine's GPUs: what the monitor knows, which processes are clients, and a warning in the
// log when one falls ill.
//
// Made and called on the loop's thread; nothing here waits for the driver (daemon/gpus/monitor.hpp).

#pragma once

#include <spdlog/logger.h>

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "daemon/gpus/monitor.hpp"
#include "daemon/report/status.hpp"

namespace gossamer::daemon {

/// How often the log may hear of news.
inline constexpr std::chrono::seconds gpu_log_period{1};

class GpuWatch {
 public:
  GpuWatch(asio::io_context& loop, const std::string& library, spdlog::logger& log);
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  /// `jobs` say whose clients the processes on the GPUs are.
  [[nodiscard]] gpus::GpuReport report(const std::vector<JobStatus>& jobs) const;

 private:
  void look();
  void say_news(const gpus::GpuReport& report);

  gpus::GpuMonitor monitor_;
  asio::steady_timer timer_;
  spdlog::logger& log_;
  bool said_stuck_ = false;
  std::map<std::string, std::string> said_;  // by UUID: the last warning; as many as GPUs were ever seen
};

}  // namespace gossamer::daemon
