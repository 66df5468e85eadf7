// See config_tool.hpp.

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
  CLI::App* check = config->add_subcommand("check", "Say what is wrong with a configuration; nothing need run");
  check->add_option("file", file_, "The file; the one that the daemon would read, if none is given")->type_name("PATH");
  check->footer("Exit status: 0 it is right, 2 it is not, 3 gossamerd cannot be started.");
  check->callback([this] { chosen_ = true; });
}

std::string ConfigTool::run() const {
  // Beside this program, as they are installed and built; otherwise wherever programs are.
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
