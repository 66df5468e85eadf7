// libsystemd behind service_manager.hpp. Its failures are ignored: a daemon that cannot reach systemd goes on.

#include "daemon/system/service_manager.hpp"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <cstdlib>

namespace gossamer::daemon {

ServiceManager::ServiceManager(asio::io_context& loop) : timer_(loop) {
  std::uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(0, &watchdog_us) > 0) interval_ = std::chrono::microseconds(watchdog_us / 2);
}

void ServiceManager::ready() {
  sd_notify(0, "READY=1");
  if (interval_.count() > 0) feed_watchdog();
}

void ServiceManager::reloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t now_us = std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1'000;
  sd_notify(0, fmt::format("RELOADING=1\nMONOTONIC_USEC={}", now_us).c_str());
}

void ServiceManager::status(const std::string& line) {
  sd_notify(0, ("STATUS=" + line).c_str());
}

void ServiceManager::stopping() {
  sd_notify(0, "STOPPING=1");
}

void ServiceManager::keep(const std::string& name, int descriptor) {
  sd_pid_notify_with_fds(0, 0, fmt::format("FDSTORE=1\nFDNAME={}", name).c_str(), &descriptor, 1);
}

void ServiceManager::forget(const std::string& name) {
  sd_notify(0, fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name).c_str());
}

std::vector<KeptDescriptor> ServiceManager::take_kept() {
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  std::vector<KeptDescriptor> kept;
  for (int i = 0; i < count; ++i) {
    kept.push_back({names[i], FileDescriptor(SD_LISTEN_FDS_START + i)});
    std::free(names[i]);
  }
  std::free(static_cast<void*>(names));
  return kept;
}

void ServiceManager::feed_watchdog() {
  sd_notify(0, "WATCHDOG=1");
  timer_.expires_after(interval_);
  timer_.async_wait([this](std::error_code error) {
    if (!error) feed_watchdog();
  });
}

}  // namespace gossamer::daemon
