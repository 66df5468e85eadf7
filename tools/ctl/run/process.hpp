// Starts one client: a process in a process group of its own, that ends when the launcher does.
//
// While the launcher has one thread. The signals that the launcher keeps to itself are the client's again.

#pragma once

#include <signal.h>
#include <sys/types.h>

#include <expected>
#include <string>
#include <vector>

namespace gossamer::ctl {

struct ProcessRequest {
  std::vector<std::string> command;      ///< at least the program, which is looked for in PATH
  std::vector<std::string> environment;  ///< whole: "NAME=value"
  std::vector<int> cpus;                 ///< to run on; empty: as the launcher
  int output = -1;                       ///< descriptors for its standard output and error; -1: the launcher's
  int error = -1;
  sigset_t signals{};  ///< blocked in it
};

/// What a shell ends with, too, if a program cannot be started, or is not there.
inline constexpr int not_startable_status = 126;
inline constexpr int not_found_status = 127;

struct StartFailure {
  int status;           ///< one of those
  std::string message;  ///< what to do
};

[[nodiscard]] std::expected<pid_t, StartFailure> start_process(const ProcessRequest& request);

/// This process' environment with `changes` ("NAME=value") in place of what was there.
[[nodiscard]] std::vector<std::string> environment_with(const std::vector<std::string>& changes);

}  // namespace gossamer::ctl
