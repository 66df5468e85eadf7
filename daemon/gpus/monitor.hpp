// Watches the GPUs from a thread of its own, so that a call into the driver keeps nobody waiting, however long it
// takes. Its figures therefore have an age.
//
// Made and asked on the loop's thread. The thread reads the figures every period, waits for errors ("Xid") in between,
// and starts again when the driver goes and comes back. If the thread hangs in the driver when the monitor ends, it is
// left behind.

#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "daemon/gpus/gpu.hpp"

namespace gossamer::gpus {

struct MonitorOptions {
  std::string library;  ///< as Nvml::open takes it; empty: GPUs are not watched
  std::chrono::milliseconds period{5000};
  /// Pause between attempts while there is no driver.
  std::chrono::milliseconds retry{60'000};
  /// A call that takes longer than this counts as hanging.
  std::chrono::milliseconds patience{15'000};
  /// The end waits this long for the thread, which is longer than the thread waits for an error at a time.
  std::chrono::milliseconds stop_patience{1000};
};

/// This many kinds of errors are remembered for each GPU: the latest.
inline constexpr std::size_t max_xid_kinds = 16;

class GpuMonitor {
 public:
  explicit GpuMonitor(MonitorOptions options);
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;
  ~GpuMonitor();

  /// The latest figures. Never waits for the driver.
  [[nodiscard]] GpuReport report() const;

 private:
  struct Shared;
  const MonitorOptions options_;
  std::shared_ptr<Shared> shared_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

/// Looks once, in a process of its own that is killed after `patience`. For a program that has one thread and looks
/// only once.
[[nodiscard]] GpuReport look_once(const std::string& library, std::chrono::milliseconds patience);

}  // namespace gossamer::gpus
