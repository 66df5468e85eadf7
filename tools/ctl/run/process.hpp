// Starts one client: a process in a process group of its own, which ends when the launcher does.
//
// Called while the launcher has one thread. The client gets back the signals that the launcher handles itself.

#pragma once

#include <signal.h>
#include <sys/types.h>

#include <expected>
#include <string>
#include <vector>

namespace gossamer::ctl {

struct ProcessRequest {
  std::vector<std::string> command;      ///< the program, which is searched for in PATH, and its arguments
  std::vector<std::string> environment;  ///< the whole environment: "NAME=value"
  std::vector<int> cpus;                 ///< processors to run on; empty: the launcher's
  int output = -1;                       ///< descriptors for its standard output and error; -1: the launcher's
  int error = -1;
  sigset_t signals{};  ///< signals blocked in the client
};

/// The statuses of a program that cannot be started, or is not found; shells use them, too.
inline constexpr int not_startable_status = 126;
inline constexpr int not_found_status = 127;

struct StartFailure {
  int status;           ///< one of the two above
  std::string message;  ///< what to do
};

[[nodiscard]] std::expected<pid_t, StartFailure> start_process(const ProcessRequest& request);

/// This process's environment, with `changes` ("NAME=value") applied.
[[nodiscard]] std::vector<std::string> environment_with(const std::vector<std::string>& changes);

}  // namespace gossamer::ctl
