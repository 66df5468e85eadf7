// What systemd is told: ready, reloading, stopping, one line of status, signs of life for its watchdog, and descriptors
// to be kept for the next life of the daemon. Without systemd (no NOTIFY_SOCKET) every call does nothing.
//
// On the loop's thread: the watchdog is fed from a timer of the loop, so that a loop that hangs is restarted.

#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "daemon/system/unique_fd.hpp"

namespace gossamer::daemon {

/// A descriptor that an earlier life of the daemon has left with systemd.
struct KeptDescriptor {
  std::string name;
  UniqueFd descriptor;
};

class ServiceManager {
 public:
  /// `loop` outlives it. Reads WATCHDOG_USEC; the first sign of life is sent by ready().
  explicit ServiceManager(asio::io_context& loop);

  void ready();
  void reloading();
  /// One line for `systemctl status`.
  void status(const std::string& line);
  void stopping();

  /// Has systemd keep a copy of the descriptor across a restart, under this name (ASCII without colons). Again for the
  /// same file: nothing more is kept. Needs FileDescriptorStoreMax= in the unit.
  void keep(const std::string& name, int descriptor);
  void forget(const std::string& name);
  /// What earlier lives have kept. Once, before anything else is started; the environment is cleared of it.
  [[nodiscard]] std::vector<KeptDescriptor> take_kept();

 private:
  void feed_watchdog();

  asio::steady_timer timer_;
  std::chrono::microseconds interval_{0};  // 0: no watchdog
};

}  // namespace gossamer::daemon
