// gossamerctl shows what the daemon of this machine does, and gives it commands. It asks over the control socket and
// prints tables, or the daemon's own JSON for scripts.
//
// Exit status: 0 done; 1 no daemon answers, or doctor or explain found a problem; 2 wrong usage; 3 the daemon answered
// with an error or not intelligibly. The status of run is the clients' (tools/ctl/run/run_tool.cpp).

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gossip/resembles.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/tables.hpp"

namespace {

using namespace gossamer;

enum ExitStatus { done = 0, no_daemon = 1, wrong_usage = 2, bad_answer = 3 };

struct Command {
  const char* name;
  const char* text;
  std::string (*table)(const nlohmann::json& answer, bool colour);
  const char* asks = nullptr;                                           ///< the daemon's command, if not `name`
  nlohmann::json (*of_answer)(const nlohmann::json& answer) = nullptr;  ///< makes this command's answer of the daemon's
};
constexpr Command commands[] = {
    {"status", "The node: identity, links, jobs, traffic", ctl::status_table},
    {"peers", "The nodes it knows: links, round trips, traffic", ctl::peers_table},
    {"members", "The members of the cluster: alive or suspected, linked or not", ctl::members_table},
    {"jobs", "The jobs it averages: progress, exchanges, traffic", ctl::jobs_table},
    {"clients", "The training processes that are attached: state, progress", ctl::clients_table, "jobs",
     ctl::clients_of},
};

int fail(ExitStatus status, const std::string& message) {
  std::fprintf(stderr, "gossamerctl: %s\n", message.c_str());
  return status;
}

int fail(const ctl::ControlError& error) {
  const bool usage = error.failure == ctl::Failure::wrong_usage;
  return fail(usage ? wrong_usage : error.failure == ctl::Failure::no_daemon ? no_daemon : bad_answer, error.message);
}

/// The word in the place of a command, if there is no such command. Otherwise empty.
std::string unknown_command(const CLI::App& app, const std::vector<std::string_view>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string word(arguments[i]);
    if (word == "--socket" || word == "--watch") ++i;
    if (word.starts_with('-')) continue;
    const auto known = app.get_subcommands([](const CLI::App*) { return true; });
    const auto is = [&](const CLI::App* command) { return command->get_name() == word; };
    return std::ranges::any_of(known, is) ? "" : word;
  }
  return "";
}

std::string advice_on(const CLI::App& app, const std::string& word) {
  std::string nearest;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& name = command->get_name();
    const std::size_t distance = edit_distance(word, name);
    if (distance > std::max<std::size_t>(1, name.size() / 3)) continue;
    if (nearest.empty() || distance < edit_distance(word, nearest)) nearest = name;
  }
  const std::string hint = nearest.empty() ? "'gossamerctl --help' lists them" : "did you mean " + nearest + "?";
  return fmt::format("there is no command \"{}\": {}", word, hint);
}

/// Whether the chosen command starts another program, whose words are behind --.
bool takes_command(const CLI::App& app) {
  return app.got_subcommand("run") ||
         (app.got_subcommand("cluster") && app.get_subcommand("cluster")->got_subcommand("run"));
}

/// Shows the answer once, or, if `watch_s` is not 0, every `watch_s` seconds until that fails or is interrupted.
ctl::CommandResult show(const Command& command, double watch_s, const ctl::Invocation& call) {
  while (true) {
    auto answer = call.ask(command.asks == nullptr ? command.name : command.asks);
    if (answer && command.of_answer != nullptr) answer = command.of_answer(*answer);
    auto shown = call.end(answer, command.table);
    if (!shown || watch_s == 0) return shown;
    const bool redraw = !call.as_json && ::isatty(STDOUT_FILENO) == 1;
    fmt::print("{}{}", redraw ? "\033[H\033[J" : "", shown->text);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(watch_s));
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // writing beyond the limit on file sizes is then an error, like a full disk
  CLI::App app("Shows what the Gossamer daemon of this machine does, and tells it what to do.");
  app.set_version_flag("--version", std::string("gossamerctl ") + GOSSAMER_VERSION);
  app.footer(
      "Exit status: 0 done, 1 no daemon answers or a problem was found, 2 wrong usage, 3 the daemon answered with an "
      "error; of run, the clients' own.\n"
      "The daemon's socket is found in the usual places, or by GOSSAMER_CONTROL_SOCKET, or by --socket.");
  ctl::Invocation call;
  std::string socket;
  double watch_s = 0;  // 0: once
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag("--json", call.as_json, "Print the answer as one line of JSON (gossamerctl.schema.json)");
  app.add_option("--socket", socket, "The daemon's control socket")->type_name("PATH");
  app.add_option("--watch", watch_s, "Show again every so many seconds")
      ->type_name("SECONDS")
      ->check(ctl::number_within(0.1, 86'400.0));
  ctl::CommandAction chosen;
  for (const Command& command : commands) {
    app.add_subcommand(command.name, command.text)->callback([&] {
      chosen = [&](const ctl::Invocation& called) { return show(command, watch_s, called); };
    });
  }
  ctl::add_top_command(app, chosen);
  ctl::add_explain_command(app, chosen);
  ctl::add_config_commands(app, chosen);
  ctl::add_node_commands(app, chosen);
  ctl::add_doctor_command(app, chosen);
  ctl::add_cluster_commands(app, chosen);
  ctl::add_certificate_commands(app, chosen);
  ctl::add_checkpoint_commands(app, chosen);
  ctl::add_gpus_command(app, chosen);
  ctl::add_job_commands(app, chosen);
  ctl::add_keep_command(app, chosen);
  ctl::add_run_command(app, chosen);
  ctl::add_local_cluster_commands(app, chosen);
  // Arguments after -- belong to another program.
  char** const own_end = std::find(argv, argv + argc, std::string_view("--"));
  try {
    app.parse(static_cast<int>(own_end - argv), argv);
  } catch (const CLI::ParseError& error) {
    const std::string unknown = unknown_command(app, {argv + 1, own_end});
    if (error.get_exit_code() != 0 && !unknown.empty()) return fail(wrong_usage, advice_on(app, unknown));
    const int status = app.exit(error);
    if (status != 0 && own_end == argv + argc && takes_command(app))
      return fail(wrong_usage, "write -- before the program to start: gossamerctl run -- python3 train.py");
    return status == 0 ? done : wrong_usage;
  }
  if (own_end != argv + argc && !takes_command(app))
    return fail(wrong_usage, "only run and cluster run take arguments after --; leave them out");
  call.behind_dashes = {std::min(own_end + 1, argv + argc), argv + argc};
  call.socket_given = !socket.empty();
  call.sockets = socket.empty() ? layout::control_sockets() : std::vector{socket};
  call.colour = ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  try {
    const auto end = chosen(call);
    if (!end) return fail(end.error());
    fmt::print("{}", end->text);
    return end->status;
  } catch (const nlohmann::json::exception& error) {
    return fail(bad_answer, fmt::format("the daemon's answer is not one that this gossamerctl {} understands: {}",
                                        GOSSAMER_VERSION, error.what()));
  }
}
