// A real gossamerd for the benchmark. It is started with a configuration in a given folder, asked over its control
// socket, and stopped with this object. Main thread. Failures are exceptions, which end the benchmark with a message.

#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace gossamer::bench {

class DaemonProcess {
 public:
  /// Starts `program` with this configuration (TOML) and waits until it answers. `folder` is made for the configuration
  /// and the log; the configuration must put the sockets there, too.
  DaemonProcess(const std::filesystem::path& program, const std::filesystem::path& folder, const std::string& toml);
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;
  /// Ends the daemon with SIGTERM, and if that takes too long with SIGKILL.
  ~DaemonProcess();

  [[nodiscard]] std::string client_socket() const;
  /// The answer to a command (status, jobs), as daemon/report/status.hpp describes it.
  [[nodiscard]] nlohmann::json ask(const std::string& command) const;

  /// The process id, for reading the process's figures. The process may end at any time.
  [[nodiscard]] pid_t process() const { return process_; }

  /// Stops the daemon's execution, and lets it go on.
  void pause() { signal_process(SIGSTOP); }
  void resume() { signal_process(SIGCONT); }

 private:
  void start(const std::filesystem::path& program, const std::filesystem::path& configuration);
  void wait_for_start();
  /// Signals the daemon if it is known to run, and nobody otherwise.
  void signal_process(int number) const;
  [[nodiscard]] bool wait_for_end(int timeout_ms);
  [[nodiscard]] std::string log() const;

  std::filesystem::path folder_;
  pid_t process_ = -1;  ///< -1: the process has ended, and its number may belong to another
};

}  // namespace gossamer::bench
