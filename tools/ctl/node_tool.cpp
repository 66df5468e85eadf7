// The commands that change what this node does. leave blocks until the daemon has ended.

#include <chrono>
#include <memory>
#include <thread>

#include "tools/ctl/commands.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

/// After the time for the handover, a leaving daemon may take this long to stop.
constexpr std::chrono::seconds leave_margin{8};
constexpr std::chrono::milliseconds leave_poll{50};

JsonAnswer leave_within(double timeout_s, const Invocation& call) {
  if (auto begun = call.request({{"command", "leave"}, {"timeout_s", timeout_s}}); !begun) return begun;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s) +
                        std::chrono::duration<double>(leave_margin);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto status = call.ask("status");
    if (!status && status.error().failure == Failure::no_daemon) return json{{"left", true}};
    std::this_thread::sleep_for(leave_poll);
  }
  return failure("the daemon is still there: its log says why; 'systemctl stop gossamerd', or SIGTERM, ends it");
}

}  // namespace

void add_node_commands(CLI::App& app, CommandAction& chosen) {
  const auto off = std::make_shared<bool>(false);
  CLI::App* drain = app.add_subcommand("drain", "Take no part in exchanges for a while; links and clients stay");
  drain->add_flag("--off", *off, "Take part again");
  drain->footer("A restart of the daemon ends it, too.");
  drain->callback([off, &chosen] {
    chosen = [off](const Invocation& call) {
      return call.end(call.request({{"command", "drain"}, {"off", *off}}), [](const json& answer, bool) {
        return answer.at("drained").get<bool>() ? "drained: no exchanges until 'gossamerctl drain --off' or a restart\n"
                                                : "takes part in exchanges again\n";
      });
    };
  });
  const auto timeout_s = std::make_shared<double>(10);
  CLI::App* leave = app.add_subcommand("leave", "Hand over what was learned here, say goodbye, and end the daemon");
  leave
      ->add_option("--timeout", *timeout_s,
                   "How long handing over may take; what is not handed over by then is lost to the others")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number_within(0.0, 3600.0));
  leave->footer(
      "Each fragment is exchanged once more with one neighbour, or a few in larger clusters, so that its training is\n"
      "not lost with the node. The daemon then ends with status 0, and systemd leaves it ended. Training on this\n"
      "machine goes on alone.");
  leave->callback([timeout_s, &chosen] {
    chosen = [timeout_s](const Invocation& call) {
      return call.end(leave_within(*timeout_s, call), [](const json&, bool) { return "the node has left\n"; });
    };
  });
}

}  // namespace gossamer::ctl
