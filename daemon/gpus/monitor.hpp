// Watches the GPUs from a thread of its own, so that no call into the driver, however long it takes, keeps anybody
// waiting; what it tells has an age.
//
// Made and asked on the loop's thread. The thread reads every period, waits for errors ("Xid") between, and begins anew
// when the driver goes and comes. If it hangs in the driver when the monitor ends, it is left there.

#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/gpus/gpu.hpp"

namespace gossamer::gpus {

struct MonitorOptions {
  std::string library;  ///< as Nvml::open takes it; empty: GPUs are not watched
  std::chrono::milliseconds period{5000};
  /// Between attempts while there is no driver.
  std::chrono::milliseconds retry{60'000};
  /// A call that takes longer counts as hanging.
  std::chrono::milliseconds patience{15'000};
  /// How long the end waits for the thread. Longer than it waits for an error at a time.
  std::chrono::milliseconds stop_patience{1000};
};

/// Kinds of errors that are remembered of each GPU: the latest.
inline constexpr std::size_t max_xid_kinds = 16;

class GpuMonitor {
 public:
  explicit GpuMonitor(MonitorOptions options);
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;
  ~GpuMonitor();

  /// What is known now. Never waits for the driver.
  [[nodiscard]] GpuReport report() const;

 private:
  struct Shared;
  const MonitorOptions options_;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
};

/// What one look says, made in a process of its own, which is killed after `patience`: for a program that looks once
/// and has one thread.
[[nodiscard]] GpuReport look_once(const std::string& library, std::chrono::milliseconds patience);

}  // namespace gossamer::gpus
