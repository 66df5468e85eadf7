// gossamerctl run: its options, and what each client gets (launcher.hpp starts the clients). It blocks until the last
// client has ended.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/gpus_tool.hpp"
#include "tools/ctl/run/launcher.hpp"
#include "tools/ctl/run/placement.hpp"

namespace gossamer::ctl {
namespace {

/// Sets where the clients' output goes, and makes the folder.
std::expected<void, std::string> set_output(LaunchOptions& options, const std::string& text) {
  if (text == "prefix") return {};
  if (text == "raw") {
    options.output = OutputMode::raw;
    return {};
  }
  if (text.find('/') == std::string::npos)
    return std::unexpected(
        fmt::format("--output {}: it is prefix, raw or a folder, with a / in its path: ./{}", text, text));
  options.output = OutputMode::folder;
  options.folder = text;
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return std::unexpected(fmt::format("--output {}: it cannot be made: {}", text, error.message()));
  return {};
}

/// The processors near the PCI device, as far as this process may run on them.
std::vector<int> cpus_near(const std::string& pci_bus) {
  std::ifstream file(fmt::format("/sys/bus/pci/devices/{}/local_cpulist", pci_bus));
  std::string text;
  std::getline(file, text);
  std::vector<int> cpus = cpu_list(text);
  cpu_set_t own;
  CPU_ZERO(&own);
  ::sched_getaffinity(0, sizeof own, &own);
  std::erase_if(cpus, [&](int cpu) { return cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &own); });
  return cpus;
}

void say(const std::string& text) {
  fmt::print(stderr, "gossamerctl run: {}\n", text);
}

struct RunOptions {
  std::vector<std::string> without_dashes;
  std::optional<std::uint32_t> clients;
  std::optional<std::string> gpus;
  std::uint32_t per_gpu = 1;
  bool bind = false;
  std::string restart = "never";
  double first_pause_s = 1;
  double grace_s = 10;
  std::string output = "prefix";
  bool fail_fast = false;
};

/// Whether the environment names a client socket that exists. Clients can then attach, even if no control socket is
/// found.
bool has_client_socket() {
  const char* const named = std::getenv(layout::client_socket_environment);
  std::error_code error;
  return named != nullptr && std::filesystem::is_socket(named, error);
}

std::expected<std::vector<ClientSpec>, std::string> place_clients(const RunOptions& options) {
  PlacementRequest request{
      .gpus = options.gpus, .clients = options.clients, .per_gpu = options.per_gpu, .visible = {}, .cpus_near = {}};
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) request.visible = visible;
  if (options.bind) request.cpus_near = cpus_near;
  gpus::GpuReport report;
  if (wants_gpus(request)) report = look_at_gpus();
  auto clients = place(request, report);
  if (!clients) return clients;
  if (report.state == "stuck") say(report.note);
  for (std::size_t rank = 0; rank < clients->size(); ++rank)
    if (const std::string& where = (*clients)[rank].where; !where.empty())
      say(fmt::format("client {} has {}", rank, where));
  return clients;
}

/// Returns the status of the first client that failed for good, or 0. An error means wrong usage, and nothing was
/// started.
std::expected<int, std::string> run(const RunOptions& options, const Invocation& call) {
  if (!options.without_dashes.empty())
    return std::unexpected(fmt::format("write -- before the command: gossamerctl run [OPTIONS] -- {}",
                                       fmt::join(options.without_dashes, " ")));
  if (call.behind_dashes.empty())
    return std::unexpected("there is nothing to start: gossamerctl run [OPTIONS] -- python3 train.py");
  const auto policy = restart_policy(options.restart, options.first_pause_s);
  if (!policy) return std::unexpected(policy.error());
  auto clients = place_clients(options);
  if (!clients) return std::unexpected(clients.error());
  if (const std::string socket = call.client_socket(); !socket.empty()) {
    for (ClientSpec& client : *clients)
      client.environment.push_back(fmt::format("{}={}", layout::client_socket_environment, socket));
  }
  LaunchOptions launching{.command = call.behind_dashes,
                          .clients = std::move(*clients),
                          .restart = *policy,
                          .folder = {},
                          .grace_s = options.grace_s,
                          .fail_fast = options.fail_fast,
                          .colour = std::getenv("NO_COLOR") == nullptr};
  if (const auto set = set_output(launching, options.output); !set) return std::unexpected(set.error());
  if (const auto status = call.ask("status");
      !status && status.error().failure == Failure::no_daemon && !has_client_socket())
    say("no daemon answers on this machine; clients cannot attach until one runs: systemctl start gossamerd, or "
        "gossamerd");
  return launch(std::move(launching));
}

}  // namespace

void add_run_command(CLI::App& app, CommandAction& chosen) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Start training processes on this machine, and look after them");
  // Arguments after -- are not parsed here. Only words before it arrive in this option.
  command->add_option("command", options->without_dashes, "After --: the program to start, with its arguments")
      ->type_name("");
  const CLI::Range number(std::size_t{1}, max_run_clients);
  command->add_option("--clients", options->clients, "How many to start, whatever GPUs there are")
      ->type_name("N")
      ->check(number);
  command
      ->add_option("--gpus", options->gpus,
                   "One client on each of these: all, none, or a list of indexes, INDEX:INSTANCE (MIG) and UUIDs. "
                   "Without this and --clients: one on each GPU, or one if there is none")
      ->type_name("LIST");
  command->add_option("--per-gpu", options->per_gpu, "How many on each GPU")
      ->type_name("N")
      ->capture_default_str()
      ->check(number);
  command->add_flag("--bind", options->bind, "Bind each to the processors near its GPU");
  command
      ->add_option(
          "--restart", options->restart,
          "Which clients to start again: never, on-failure or always; on-failure:3 gives up after 3 restarts in a "
          "row without a minute of life between them")
      ->type_name("POLICY")
      ->capture_default_str();
  command->add_option("--backoff", options->first_pause_s, "Before the first restart; doubles up to a minute")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number_within(0.0, 3600.0));
  command
      ->add_option("--grace", options->grace_s,
                   "How long clients may take to end after a signal before they are killed")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(number_within(0.0, 86'400.0));
  command
      ->add_option("--output", options->output,
                   "prefix: whole lines, each with the rank before it; raw: unchanged; or a folder, where each client "
                   "gets RANK.log")
      ->type_name("HOW")
      ->capture_default_str();
  command->add_flag("--fail-fast", options->fail_fast, "Stop the others when one has failed and is not started again");
  command->footer(
      "Each gets GOSSAMER_LOCAL_RANK, GOSSAMER_LOCAL_WORLD_SIZE and GOSSAMER_RESTARTS in its environment, "
      "GOSSAMER_SOCKET if the daemon is not where programs look for it, and no standard input. With GPUs, "
      "CUDA_VISIBLE_DEVICES names its own, which it "
      "sees as cuda:0; those that CUDA_VISIBLE_DEVICES hides from "
      "this command are left alone.\n"
      "SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on and end the restarts; a second one, or the end of the grace, "
      "kills. SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on.\n"
      "Exit status: 0, or that of the first client that failed and was not started again (128 and the signal's number, "
      "if one ended it); 126 or 127 if the command cannot be started; 2 wrong usage.");
  command->callback([options, &chosen] {
    chosen = [options](const Invocation& call) -> CommandResult {
      const auto status = run(*options, call);
      if (!status) return wrong_usage(status.error());
      return CommandEnd{.status = *status};
    };
  });
}

}  // namespace gossamer::ctl
