#include "tools/ctl/node_tool.hpp"

#include <fmt/format.h>

#include <thread>

#include "tools/ctl/json_line.hpp"

namespace gossamer::ctl {

using nlohmann::json;

NodeTool::NodeTool(CLI::App& app) {
  CLI::App* drain = app.add_subcommand("drain", "Take no part in exchanges for a while; links and clients stay");
  drain->add_flag("--off", off_, "Take part again");
  drain->footer("A restart of the daemon ends it, too.");
  drain->callback([this] { request_ = {{"command", "drain"}, {"off", off_}}; });
  CLI::App* leave = app.add_subcommand("leave", "Hand over what was learned here, say goodbye, and end the daemon");
  leave
      ->add_option("--timeout", timeout_s_,
                   "How long handing over may take; what is not handed over by then is lost to the others")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  leave->footer(
      "Each fragment is exchanged once more with one neighbour, or a few in larger clusters, so that its training is\n"
      "not lost with the node. The daemon then ends with status 0, and systemd leaves it ended. Training on this\n"
      "machine goes on alone.");
  leave->callback([this] { request_ = {{"command", "leave"}, {"timeout_s", timeout_s_}}; });
}

std::expected<std::string, ControlError> NodeTool::run(const Ask& ask, bool as_json, bool) {
  auto answer = ask(request_);
  if (answer && request_.at("command") == "leave") answer = wait_for_end(ask);
  if (!answer) return std::unexpected(answer.error());
  if (as_json) return json_line(*std::move(answer));
  if (request_.at("command") == "leave") return "the node has left\n";
  return answer->at("drained").get<bool>() ? "drained: no exchanges until 'gossamerctl drain --off' or a restart\n"
                                           : "takes part in exchanges again\n";
}

std::expected<json, ControlError> NodeTool::wait_for_end(const Ask& ask) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s_) +
                        std::chrono::duration<double>(leave_margin);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto status = ask({{"command", "status"}});
    if (!status && status.error().failure == Failure::no_daemon) return json{{"left", true}};
    std::this_thread::sleep_for(leave_poll);
  }
  return std::unexpected(
      ControlError{Failure::bad_answer,
                   "the daemon is still there: its log says why; 'systemctl stop gossamerd', or SIGTERM, ends it"});
}

}  // namespace gossamer::ctl
