#include "tools/ctl/explain_tool.hpp"

#include <chrono>
#include <thread>

namespace gossamer::ctl {
namespace {

using nlohmann::json;

std::expected<Look, ControlError> look(const ExplainTool::Ask& ask) {
  Look seen;
  seen.at_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  struct Wanted {
    const char* command;
    const char* member;
    json& value;
  };
  const Wanted wanted[] = {{"status", "node", seen.node},
                           {"peers", "peers", seen.peers},
                           {"members", "members", seen.members},
                           {"jobs", "jobs", seen.jobs}};
  for (const auto& [command, member, value] : wanted) {
    const auto answer = ask(command);
    if (!answer) return std::unexpected(answer.error());
    value = answer->at(member);
  }
  return seen;
}

}  // namespace

ExplainTool::ExplainTool(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("explain", "Say why a node is behind, slow or silent, by measured figures, and what to do");
  command->add_option("node", node_, "Its name, or the beginning of its id (default: this node)")->type_name("NODE");
  command->add_option("--seconds", seconds_, "How long to measure")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 600.0));
  command->callback([this] { chosen_ = true; });
}

std::expected<std::vector<Finding>, ControlError> ExplainTool::run(const Ask& ask) const {
  const auto earlier = look(ask);
  if (!earlier) return std::unexpected(earlier.error());
  const auto id = find_node(*earlier, node_);
  if (!id) return std::unexpected(ControlError{Failure::bad_answer, id.error()});
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
  const auto later = look(ask);
  if (!later) return std::unexpected(later.error());
  return explain(*earlier, *later, *id);
}

}  // namespace gossamer::ctl
