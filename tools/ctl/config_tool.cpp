// gossamerctl config check: finds what is wrong with a configuration, without a running daemon. It runs the daemon's
// program for that.

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "tools/ctl/commands.hpp"
#include "tools/ctl/local_daemon.hpp"

namespace gossamer::ctl {
namespace {

/// Replaces this process by `gossamerd --check-config`. Returns only if that fails.
CommandResult check(const std::string& file) {
  const auto daemon = daemon_program();
  if (!daemon) return failure(daemon.error());
  std::vector<const char*> arguments{daemon->c_str(), "--check-config"};
  if (!file.empty()) arguments.insert(arguments.end(), {"--config", file.c_str()});
  arguments.push_back(nullptr);
  ::execv(daemon->c_str(), const_cast<char* const*>(arguments.data()));
  return failure(fmt::format("{} cannot be started: {}", daemon->string(), std::strerror(errno)));
}

}  // namespace

void add_config_commands(CLI::App& app, CommandAction& chosen) {
  const auto file = std::make_shared<std::string>();
  CLI::App* config = app.add_subcommand("config", "The configuration");
  config->require_subcommand(1);
  CLI::App* command = config->add_subcommand("check", "Say what is wrong with a configuration; no daemon is needed");
  command->add_option("file", *file, "The file (default: the one that the daemon reads)")->type_name("PATH");
  command->footer("Exit status: 0 the configuration is right, 2 it is wrong, 3 gossamerd cannot be started.");
  command->callback([file, &chosen] { chosen = [file](const Invocation&) { return check(*file); }; });
}

}  // namespace gossamer::ctl
