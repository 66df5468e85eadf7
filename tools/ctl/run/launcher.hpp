// gossamerctl run: starts the clients, passes their output and signals on, starts them again by the policy, and leaves
// none behind.
//
// One thread and one loop over poll. Each client is the leader of a process group; whatever is left of that when the
// leader has ended is killed. If the launcher itself is killed, the kernel and the guard (guard.hpp) end the clients.

#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/ctl/run/restart_policy.hpp"

namespace gossamer::ctl {

inline constexpr std::size_t max_run_clients = 256;
/// Added to the number of the signal that ended a client, as a shell does.
inline constexpr int killed_status = 128;

enum class OutputMode : std::uint8_t { prefix, raw, folder };

struct ClientSpec {
  std::string where;                     ///< "GPU 0"; empty: nowhere in particular
  std::vector<std::string> environment;  ///< "NAME=value", beyond what every client gets
  std::vector<int> cpus;                 ///< to run on; empty: as the launcher
};

struct LaunchOptions {
  std::vector<std::string> command;
  std::vector<ClientSpec> clients;  ///< in the order of their ranks; at most max_run_clients
  RestartPolicy restart;
  OutputMode output = OutputMode::prefix;
  std::filesystem::path folder;  ///< for the outputs, with OutputMode::folder; exists
  double grace_s = 10;           ///< between the first signal to stop and SIGKILL
  bool fail_fast = false;        ///< the others are stopped when one has failed for good
  bool colour = false;           ///< where the output is a terminal
};

/// Until the last client has ended for good. The status of the first that failed for good, or 0. An error: nothing was
/// started.
[[nodiscard]] std::expected<int, std::string> launch(LaunchOptions options);

}  // namespace gossamer::ctl
