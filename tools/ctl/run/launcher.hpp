// gossamerctl run starts the clients, passes their output and signals on, starts them again by the policy, and leaves
// none behind.
//
// One thread with one loop over poll. Each client is the leader of a process group; when the leader has ended, the rest
// of the group is killed. If the launcher itself is killed, the kernel and the guard (guard.hpp) end the clients.

#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/ctl/run/restart_policy.hpp"

namespace gossamer::ctl {

inline constexpr std::size_t max_run_clients = 256;
/// This is added to the number of the signal that ended a client, as a shell does.
inline constexpr int killed_status = 128;

enum class OutputMode : std::uint8_t { prefix, raw, folder };

struct ClientSpec {
  std::string where;                     ///< "GPU 0"; empty: no particular place
  std::vector<std::string> environment;  ///< "NAME=value", besides the variables that every client gets
  std::vector<int> cpus;                 ///< processors to run on; empty: the launcher's
};

struct LaunchOptions {
  std::vector<std::string> command;
  std::vector<ClientSpec> clients;  ///< in the order of their ranks; at most max_run_clients
  RestartPolicy restart;
  OutputMode output = OutputMode::prefix;
  std::filesystem::path folder;  ///< an existing folder for the outputs, with OutputMode::folder
  double grace_s = 10;           ///< time between the first signal to stop and SIGKILL
  bool fail_fast = false;        ///< when one client has failed for good, the others are stopped
  bool colour = false;           ///< whether the output is a terminal
};

/// Returns when the last client has ended for good, with the status of the first client that failed for good, or 0. An
/// error means that nothing was started.
[[nodiscard]] std::expected<int, std::string> launch(LaunchOptions options);

}  // namespace gossamer::ctl
