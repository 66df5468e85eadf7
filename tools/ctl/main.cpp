// gossamerctl shows what the daemon of this machine does, and gives it commands. It asks over the control socket and
// prints tables, or the daemon's own JSON for scripts.
//
// Exit status: 0 done; 1 no daemon answers, or doctor or explain found a problem; 2 wrong usage; 3 the daemon answered
// with an error or not intelligibly. The status of run is the clients' (tools/ctl/run/run_tool.hpp).

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/checkpoint_tool.hpp"
#include "tools/ctl/cluster_tool.hpp"
#include "tools/ctl/config_tool.hpp"
#include "tools/ctl/control_client.hpp"
#include "tools/ctl/doctor_tool.hpp"
#include "tools/ctl/explain_tool.hpp"
#include "tools/ctl/gpus_tool.hpp"
#include "tools/ctl/json_line.hpp"
#include "tools/ctl/node_tool.hpp"
#include "tools/ctl/run/run_tool.hpp"
#include "tools/ctl/tables.hpp"
#include "tools/ctl/top_tool.hpp"

namespace {

using namespace gossamer;

enum ExitStatus { done = 0, no_daemon = 1, unsound = 1, wrong_usage = 2, bad_answer = 3 };

struct Command {
  const char* name;
  const char* text;
  std::string (*table)(const nlohmann::json& answer, bool colour);
  const char* asks = nullptr;                                           ///< the daemon's command, if not this name
  nlohmann::json (*of_answer)(const nlohmann::json& answer) = nullptr;  ///< derives this command's answer from that
};
constexpr Command commands[] = {
    {"status", "The node: identity, links, jobs, traffic", ctl::status_table},
    {"peers", "The nodes it knows: links, round trips, traffic", ctl::peers_table},
    {"members", "The members of the cluster: alive or suspected, linked or not", ctl::members_table},
    {"jobs", "The jobs it averages: progress, exchanges, traffic", ctl::jobs_table},
    {"clients", "The training processes that are attached: state, progress", ctl::clients_table, "jobs",
     ctl::clients_of},
};

struct Arguments {
  bool json = false;
  std::string socket;
  double watch_s = 0;  // 0: once
};

int fail(ExitStatus status, const std::string& message) {
  std::fprintf(stderr, "gossamerctl: %s\n", message.c_str());
  return status;
}

int fail(const ctl::ControlError& error) {
  return fail(error.failure == ctl::Failure::no_daemon ? no_daemon : bad_answer, error.message);
}

int fail(const nlohmann::json::exception& error) {
  return fail(bad_answer, fmt::format("the daemon's answer is not one that this gossamerctl {} understands: {}",
                                      GOSSAMER_VERSION, error.what()));
}

bool want_colour() {
  return ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
}

std::vector<std::string> sockets_for(const Arguments& arguments) {
  return arguments.socket.empty() ? layout::control_sockets() : std::vector<std::string>{arguments.socket};
}

int show(const Command& command, const Arguments& arguments) {
  auto answer = ctl::ask(sockets_for(arguments), command.asks == nullptr ? command.name : command.asks);
  if (!answer) return fail(answer.error());
  try {
    if (command.of_answer != nullptr) answer = command.of_answer(*answer);
    if (arguments.json) {
      fmt::print("{}", ctl::json_line(*answer));
      return done;
    }
    const std::string table = command.table(*answer, want_colour());
    const bool redraw = arguments.watch_s > 0 && ::isatty(STDOUT_FILENO) == 1;
    fmt::print("{}{}", redraw ? "\033[H\033[J" : "", table);
    return done;
  } catch (const nlohmann::json::exception& error) {
    return fail(error);
  }
}

/// Runs a command that does more than show. A tool adds its subcommands in its constructor and outlives the parsing.
template <class Tool>
int carry_out(Tool& tool, const Arguments& arguments) {
  const auto ask = [&](const nlohmann::json& request) { return ctl::request(sockets_for(arguments), request); };
  try {
    const auto text = tool.run(ask, arguments.json, want_colour());
    if (!text) return fail(text.error());
    fmt::print("{}", *text);
    return done;
  } catch (const nlohmann::json::exception& error) {
    return fail(error);
  }
}

int print(const std::vector<ctl::Finding>& findings, const Arguments& arguments) {
  fmt::print("{}", arguments.json ? ctl::json_line(ctl::as_json(findings)) : ctl::as_text(findings, want_colour()));
  return ctl::worst(findings) == ctl::Grade::problem ? unsound : done;
}

int examine(const ctl::DoctorTool& doctor, const Arguments& arguments) {
  const auto ask = [&](const nlohmann::json& request) { return ctl::request(sockets_for(arguments), request); };
  try {
    return print(doctor.run(ask), arguments);
  } catch (const nlohmann::json::exception& error) {
    return fail(error);
  }
}

int explain(const ctl::ExplainTool& tool, const Arguments& arguments) {
  const auto ask = [&](const std::string& command) { return ctl::ask(sockets_for(arguments), command); };
  try {
    const auto findings = tool.run(ask);
    return findings ? print(*findings, arguments) : fail(findings.error());
  } catch (const nlohmann::json::exception& error) {
    return fail(error);
  }
}

int watch_live(const ctl::TopTool& top, const Arguments& arguments) {
  const auto ask = [&](const std::string& command) { return ctl::ask(sockets_for(arguments), command); };
  try {
    const auto ended = top.run(ask, arguments.json, want_colour());
    return ended ? int{done} : fail(ended.error());
  } catch (const nlohmann::json::exception& error) {
    return fail(error);
  }
}

int run_clients(const ctl::RunTool& tool, std::vector<std::string> command, const Arguments& arguments) {
  const auto ask = [&](const std::string& question) { return ctl::ask(sockets_for(arguments), question); };
  const auto status = tool.run(ask, std::move(command));
  return status ? *status : fail(wrong_usage, status.error());
}

/// Repeats the command until it fails or is interrupted.
int watch(const Command& command, const Arguments& arguments) {
  while (true) {
    if (const int status = show(command, arguments); status != done) return status;
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.watch_s));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Shows what the Gossamer daemon of this machine does, and tells it what to do.");
  app.set_version_flag("--version", std::string("gossamerctl ") + GOSSAMER_VERSION);
  app.footer(
      "Exit status: 0 done, 1 no daemon answers or a problem was found, 2 wrong usage, 3 the daemon answered with an "
      "error; of run, the clients' own.\n"
      "The daemon's socket is found in the usual places, or by GOSSAMER_CONTROL_SOCKET, or by --socket.");
  Arguments arguments;
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag("--json", arguments.json, "Print the answer as one line of JSON (gossamerctl.schema.json)");
  app.add_option("--socket", arguments.socket, "The daemon's control socket")->type_name("PATH");
  app.add_option("--watch", arguments.watch_s, "Show again every so many seconds")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 86'400.0));
  for (const Command& command : commands)
    app.add_subcommand(command.name, command.text);
  ctl::TopTool top(app);
  ctl::ExplainTool explaining(app);
  ctl::ConfigTool config(app);
  ctl::NodeTool node(app);
  ctl::DoctorTool doctor(app);
  ctl::ClusterTool cluster(app);
  ctl::CheckpointTool checkpoint(app);
  ctl::GpusTool gpus(app);
  ctl::RunTool running(app);
  // Arguments after -- belong to another program.
  char** const own_end = std::find(argv, argv + argc, std::string_view("--"));
  try {
    app.parse(static_cast<int>(own_end - argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? done : wrong_usage;
  }
  if (running.chosen()) return run_clients(running, {std::min(own_end + 1, argv + argc), argv + argc}, arguments);
  if (own_end != argv + argc) return fail(wrong_usage, "only run takes arguments after --; leave them out");
  if (explaining.chosen()) return explain(explaining, arguments);
  if (top.chosen()) return watch_live(top, arguments);
  if (config.chosen()) return fail(bad_answer, config.run());
  if (node.chosen()) return carry_out(node, arguments);
  if (doctor.chosen()) return examine(doctor, arguments);
  if (cluster.chosen()) return carry_out(cluster, arguments);
  if (checkpoint.chosen()) return carry_out(checkpoint, arguments);
  if (gpus.chosen()) return carry_out(gpus, arguments);
  for (const Command& command : commands)
    if (app.got_subcommand(command.name))
      return arguments.watch_s > 0 ? watch(command, arguments) : show(command, arguments);
  return wrong_usage;
}
