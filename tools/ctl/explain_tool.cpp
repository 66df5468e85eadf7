// gossamerctl explain looks at the daemon twice and prints the findings of tools/ctl/explain.hpp. Blocks until then.

#include "tools/ctl/explain.hpp"

#include <chrono>
#include <memory>
#include <thread>

#include "tools/ctl/commands.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

std::expected<Look, ControlError> look(const Invocation& call) {
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
    const auto answer = call.ask(command);
    if (!answer) return std::unexpected(answer.error());
    value = answer->at(member);
  }
  return seen;
}

struct ExplainOptions {
  std::string node;
  double seconds = 3;
};

CommandResult explain(const ExplainOptions& options, const Invocation& call) {
  const auto earlier = look(call);
  if (!earlier) return std::unexpected(earlier.error());
  const auto id = find_node(*earlier, options.node);
  if (!id) return failure(id.error());
  std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
  const auto later = look(call);
  if (!later) return std::unexpected(later.error());
  return call.end(explain(*earlier, *later, *id));
}

}  // namespace

void add_explain_command(CLI::App& app, CommandAction& chosen) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* command =
      app.add_subcommand("explain", "Say why a node is behind, slow or silent, by measured figures, and what to do");
  command->add_option("node", options->node, "Its name, or the beginning of its id (default: this node)")
      ->type_name("NODE");
  command->add_option("--seconds", options->seconds, "How long to measure")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number_within(0.0, 600.0));
  command->callback(
      [options, &chosen] { chosen = [options](const Invocation& call) { return explain(*options, call); }; });
}

}  // namespace gossamer::ctl
