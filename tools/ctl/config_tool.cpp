#include "tools/ctl/config_tool.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

namespace gossamer::ctl {

ConfigTool::ConfigTool(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "The configuration");
  config->require_subcommand(1);
  CLI::App* check = config->add_subcommand("check", "Say what is wrong with a configuration; no daemon is needed");
  check->add_option("file", file_, "The file (default: the one that the daemon reads)")->type_name("PATH");
  check->footer("Exit status: 0 the configuration is right, 2 it is wrong, 3 gossamerd cannot be started.");
  check->callback([this] { chosen_ = true; });
}

std::string ConfigTool::run() const {
  // The daemon is beside this program in builds and installations; otherwise it is searched for in PATH.
  std::error_code error;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path beside = here / "gossamerd";
  const std::string daemon = ::access(beside.c_str(), X_OK) == 0 ? beside.string() : "gossamerd";
  std::vector<const char*> arguments{daemon.c_str(), "--check-config"};
  if (!file_.empty()) arguments.insert(arguments.end(), {"--config", file_.c_str()});
  arguments.push_back(nullptr);
  ::execvp(daemon.c_str(), const_cast<char* const*>(arguments.data()));
  return fmt::format("{} cannot be started ({}); install the package gossamer", daemon, std::strerror(errno));
}

}  // namespace gossamer::ctl
