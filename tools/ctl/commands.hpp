// The subcommands of gossamerctl that have a file of their own.
//
// Each add_…_commands() declares subcommands with their options. When the command line is parsed, the callback of the
// chosen one stores in `chosen` what it does, and main then does it. Commands block until the daemon answers, and some
// for longer. They may throw json's exceptions if an answer is not one that this version understands.

#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/ctl/control_client.hpp"
#include "tools/ctl/finding.hpp"
#include "tools/ctl/json_line.hpp"

namespace gossamer::ctl {

/// How a command has ended; main prints the text and exits with the status.
struct CommandEnd {
  std::string text = {};  ///< for standard output
  int status = 0;         ///< the exit status
};
using CommandResult = std::expected<CommandEnd, ControlError>;

/// How main runs a command: the daemon to ask, and the form of the answer.
struct Invocation {
  std::vector<std::string> sockets;  ///< where the daemon may answer
  bool socket_given = false;         ///< whether --socket names it, and not the environment or the usual places
  bool as_json = false;
  bool colour = false;
  std::vector<std::string> behind_dashes = {};  ///< the arguments after --, which belong to another program

  /// The socket where that daemon accepts processes, beside its control socket. Empty: the client library finds it.
  [[nodiscard]] std::string client_socket() const;
  [[nodiscard]] JsonAnswer request(const nlohmann::json& request) const { return ctl::request(sockets, request); }
  /// Sends a command that has no arguments.
  [[nodiscard]] JsonAnswer ask(const std::string& command) const { return request({{"command", command}}); }

  /// The result of a command with this answer: JSON, or the text that words(answer, colour) returns.
  template <class Words>
  [[nodiscard]] CommandResult end(const JsonAnswer& answer, Words words) const {
    if (!answer) return std::unexpected(answer.error());
    return CommandEnd{as_json ? json_line(*answer) : words(*answer, colour)};
  }
  [[nodiscard]] CommandResult end(const std::vector<Finding>& findings) const {
    return CommandEnd{as_json ? json_line(ctl::as_json(findings)) : as_text(findings, colour),
                      worst(findings) == Grade::problem ? 1 : 0};
  }
};
using CommandAction = std::function<CommandResult(const Invocation&)>;

/// A number from least to most. CLI::Range would let NaN through.
[[nodiscard]] inline CLI::Validator number_within(double least, double most) {
  const CLI::Range range(least, most);
  return {[range](std::string& text) {
            double number = 0;
            const bool is_nan = CLI::detail::lexical_cast(text, number) && std::isnan(number);
            return is_nan ? "Value " + text + " is no number" : range(text);
          },
          range.get_description()};
}

/// invite, pending, approve, certificates
void add_certificate_commands(CLI::App& app, CommandAction& chosen);
/// checkpoint, export, import
void add_checkpoint_commands(CLI::App& app, CommandAction& chosen);
/// deny, allow, denials, key, authority, audit, join: they change the cluster, or show what its members agree on
void add_cluster_commands(CLI::App& app, CommandAction& chosen);
/// config check
void add_config_commands(CLI::App& app, CommandAction& chosen);
void add_doctor_command(CLI::App& app, CommandAction& chosen);
void add_explain_command(CLI::App& app, CommandAction& chosen);
void add_gpus_command(CLI::App& app, CommandAction& chosen);
/// job set
void add_job_commands(CLI::App& app, CommandAction& chosen);
void add_keep_command(CLI::App& app, CommandAction& chosen);
/// cluster start, status, stop, run: several nodes on this machine
void add_local_cluster_commands(CLI::App& app, CommandAction& chosen);
/// drain, leave: they change what this node does
void add_node_commands(CLI::App& app, CommandAction& chosen);
void add_run_command(CLI::App& app, CommandAction& chosen);
void add_top_command(CLI::App& app, CommandAction& chosen);

}  // namespace gossamer::ctl
