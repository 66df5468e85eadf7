// The daemon's view of the machine's GPUs: what the monitor knows, which processes are clients, and a warning in the
// log when a GPU falls ill.
//
// Made and called on the loop's thread. Nothing here waits for the driver (daemon/gpus/monitor.hpp).

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

/// News is logged at most this often.
inline constexpr std::chrono::seconds gpu_log_period{1};

class GpuWatch {
 public:
  GpuWatch(asio::io_context& loop, const std::string& library, spdlog::logger& log);
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  /// `jobs` tells which processes on the GPUs are clients, and of which job.
  [[nodiscard]] gpus::GpuReport report(const std::vector<JobStatus>& jobs) const;

 private:
  void look();
  void say_news(const gpus::GpuReport& report);

  gpus::GpuMonitor monitor_;
  asio::steady_timer timer_;
  spdlog::logger& log_;
  bool said_stuck_ = false;
  std::map<std::string, std::string> said_;  // the last warning by UUID; as many as GPUs were ever seen
};

}  // namespace gossamer::daemon
