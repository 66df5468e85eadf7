// What systemd is told: ready, reloading, stopping, one line of status, and signs of life for its watchdog. Without
// systemd (no NOTIFY_SOCKET) every call does nothing.
//
// On the loop's thread: the watchdog is fed from a timer of the loop, so that a loop that hangs is restarted.

#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <string>

namespace gossamer::daemon {

class ServiceManager {
 public:
  /// `loop` outlives it. Reads WATCHDOG_USEC; the first sign of life is sent by ready().
  explicit ServiceManager(asio::io_context& loop);

  void ready();
  void reloading();
  /// One line for `systemctl status`.
  void status(const std::string& line);
  void stopping();

 private:
  void feed_watchdog();

  asio::steady_timer timer_;
  std::chrono::microseconds interval_{0};  // 0: no watchdog
};

}  // namespace gossamer::daemon
