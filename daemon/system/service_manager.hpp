// Tells systemd that the daemon is ready, reloading or stopping, a line of status, and signs of life for its watchdog,
// and gives it descriptors to keep for the next life of the daemon. Without systemd (no NOTIFY_SOCKET) every call does
// nothing.
//
// On the loop's thread: a timer of the loop feeds the watchdog, so that systemd restarts a daemon whose loop hangs.

#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

/// A descriptor that an earlier life of the daemon has left with systemd.
struct KeptDescriptor {
  std::string name;
  FileDescriptor descriptor;
};

class ServiceManager {
 public:
  /// `loop` outlives this object. Reads WATCHDOG_USEC; ready() sends the first sign of life.
  explicit ServiceManager(asio::io_context& loop);

  void ready();
  void reloading();
  /// Sets the line that `systemctl status` shows.
  void status(const std::string& line);
  void stopping();

  /// Has systemd keep a copy of the descriptor across a restart, under this name (ASCII without colons). A second call
  /// for the same file keeps nothing more. Needs FileDescriptorStoreMax= in the unit.
  void keep(const std::string& name, int descriptor);
  void forget(const std::string& name);
  /// Takes what earlier lives have left. Call this once, before anything else is started; it clears the environment
  /// variables.
  [[nodiscard]] std::vector<KeptDescriptor> take_kept();

 private:
  void feed_watchdog();

  asio::steady_timer timer_;
  std::chrono::microseconds interval_{0};  // 0: no watchdog
};

}  // namespace gossamer::daemon
