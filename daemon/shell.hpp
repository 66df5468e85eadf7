// The daemon around its core: the sockets for clients and commands, signals, systemd, reload and the stop.
//
// main makes and runs it on the one thread that runs the loop. open() binds the sockets. run() says that the daemon is
// ready and turns the loop until SIGTERM or SIGINT; then the core has stop_grace to finish what is in flight. A second
// signal ends it at once. SIGHUP reads the configuration again.

#pragma once

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "daemon/clients/client_listener.hpp"
#include "daemon/clients/kept_memory.hpp"
#include "daemon/config/config.hpp"
#include "daemon/control/control_commands.hpp"
#include "daemon/control/control_server.hpp"
#include "daemon/core.hpp"
#include "daemon/log/log.hpp"
#include "daemon/report/gpu_watch.hpp"
#include "daemon/report/page.hpp"
#include "daemon/report/watch.hpp"
#include "daemon/system/service_manager.hpp"

namespace gossamer::daemon {

/// A stopping daemon waits this long for the exchanges in flight.
inline constexpr std::chrono::seconds stop_grace{20};
/// How long the command "leave" may hand over, unless its request names another time.
inline constexpr double default_leave_s = 10;
inline constexpr double max_leave_s = 3600;
/// How often systemd gets a new line of status.
inline constexpr std::chrono::seconds status_period{5};

/// Reads the configuration again, for SIGHUP. Returns it resolved, or says what is wrong.
using ConfigSource = std::function<std::expected<Config, std::string>()>;

class Shell {
 public:
  /// Binds the sockets in `socket_folder`. All references outlive the shell; `config` is resolved.
  [[nodiscard]] static std::expected<std::unique_ptr<Shell>, std::string> open(
      asio::io_context& loop, Config config, ConfigSource source, const std::filesystem::path& socket_folder,
      Core& core, Log& log);

  /// Serves until a signal, or stop(), ends it. Returns after the core has stopped or its grace is over. Clients hear
  /// of the end when the shell is destroyed.
  void run();
  /// Does what the first SIGTERM does; a second call does what the second SIGTERM does. From the loop.
  void stop();
  /// Does what the command "leave" does: last exchanges hand over what was learned here, then it stops like stop().
  void leave(std::chrono::milliseconds patience);
  /// Does what SIGHUP does. From the loop.
  void reload_config();

  /// The answer to a command of the control socket.
  [[nodiscard]] nlohmann::json answer(const nlohmann::json& request, const Caller& caller) const;
  [[nodiscard]] const Config& config() const { return config_; }

 private:
  Shell(asio::io_context& loop, Config config, ConfigSource source, Core& core, Log& log);

  void expect_signal();
  void end_after(std::chrono::milliseconds patience);
  [[nodiscard]] std::vector<ControlCommand> control_commands();
  [[nodiscard]] nlohmann::json answer_drain(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json answer_leave(const nlohmann::json& request);
  void warn_of_unknown_users() const;
  void report_status();
  void watch();
  [[nodiscard]] double uptime_s() const;
  void open_page();
  [[nodiscard]] NodeStatus node_status() const;

  asio::io_context& loop_;
  Config config_;
  UserRights rights_;
  const ConfigSource source_;
  Core& core_;
  Log& log_;
  const std::chrono::steady_clock::time_point started_;
  ServiceManager service_manager_;
  KeptMemory kept_;
  GpuWatch gpus_;
  asio::signal_set signals_;
  asio::steady_timer status_timer_;
  asio::steady_timer grace_timer_;
  asio::steady_timer watch_timer_;
  const std::vector<ControlCommand> commands_;
  Watch watch_;
  std::string config_error_;  // why the configuration file could not be reloaded; empty: it could
  bool stopping_ = false;
  bool leaving_ = false;
  std::shared_ptr<ClientListener> clients_;
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<Page> page_;  // none if it is switched off, or its address is taken
};

/// The folder for the sockets: the configured one, which is created if need be, or the one by the rule of
/// sdk/layout/socket_path.hpp.
[[nodiscard]] std::expected<std::filesystem::path, std::string> socket_folder(const Config& config);

}  // namespace gossamer::daemon
