#include "tools/ctl/run/run_tool.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

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

/// The nearby processors that this process may run on.
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

}  // namespace

RunTool::RunTool(CLI::App& app)
    : command_(app.add_subcommand("run", "Start training processes on this machine, and look after them")) {
  // Arguments after -- are not parsed here. Only words before it arrive in this option.
  command_->add_option("command", without_dashes_, "After --: the program to start, with its arguments")->type_name("");
  const CLI::Range number(std::size_t{1}, max_run_clients);
  command_->add_option("--clients", clients_, "How many to start, whatever GPUs there are")
      ->type_name("N")
      ->check(number);
  command_
      ->add_option("--gpus", gpus_,
                   "One client on each of these: all, none, or a list of indexes, INDEX:INSTANCE (MIG) and UUIDs. "
                   "Without this and --clients: one on each GPU, or one if there is none")
      ->type_name("LIST");
  command_->add_option("--per-gpu", per_gpu_, "How many on each GPU")
      ->type_name("N")
      ->capture_default_str()
      ->check(number);
  command_->add_flag("--bind", bind_, "Bind each to the processors near its GPU");
  command_
      ->add_option(
          "--restart", restart_,
          "Which clients to start again: never, on-failure or always; on-failure:3 gives up after 3 restarts in a "
          "row without a minute of life between them")
      ->type_name("POLICY")
      ->capture_default_str();
  command_->add_option("--backoff", first_pause_s_, "Before the first restart; doubles up to a minute")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  command_->add_option("--grace", grace_s_, "How long clients may take to end after a signal before they are killed")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86'400.0));
  command_
      ->add_option("--output", output_,
                   "prefix: whole lines, each with the rank before it; raw: unchanged; or a folder, where each client "
                   "gets RANK.log")
      ->type_name("HOW")
      ->capture_default_str();
  command_->add_flag("--fail-fast", fail_fast_, "Stop the others when one has failed and is not started again");
  command_->footer(
      "Each gets LOCAL_RANK, LOCAL_WORLD_SIZE and GOSSAMER_RESTARTS in its environment, and no standard input. With "
      "GPUs, CUDA_VISIBLE_DEVICES names its own, which it sees as cuda:0; those that CUDA_VISIBLE_DEVICES hides from "
      "this command are left alone.\n"
      "SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on and end the restarts; a second one, or the end of the grace, "
      "kills. SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on.\n"
      "Exit status: 0, or that of the first client that failed and was not started again (128 and the signal's number, "
      "if one ended it); 126 or 127 if the command cannot be started; 2 wrong usage.");
}

std::expected<std::vector<ClientSpec>, std::string> RunTool::place_clients() const {
  PlacementRequest request{.gpus = gpus_, .clients = clients_, .per_gpu = per_gpu_, .visible = {}, .cpus_near = {}};
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) request.visible = visible;
  if (bind_) request.cpus_near = cpus_near;
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

std::expected<int, std::string> RunTool::run(const Ask& ask, std::vector<std::string> command) const {
  if (!without_dashes_.empty())
    return std::unexpected(
        fmt::format("write -- before the command: gossamerctl run [OPTIONS] -- {}", fmt::join(without_dashes_, " ")));
  if (command.empty())
    return std::unexpected("there is nothing to start: gossamerctl run [OPTIONS] -- python3 train.py");
  const auto policy = restart_policy(restart_, first_pause_s_);
  if (!policy) return std::unexpected(policy.error());
  auto clients = place_clients();
  if (!clients) return std::unexpected(clients.error());
  LaunchOptions options{.command = std::move(command),
                        .clients = std::move(*clients),
                        .restart = *policy,
                        .folder = {},
                        .grace_s = grace_s_,
                        .fail_fast = fail_fast_,
                        .colour = std::getenv("NO_COLOR") == nullptr};
  if (const auto set = set_output(options, output_); !set) return std::unexpected(set.error());
  if (const auto status = ask("status"); !status && status.error().failure == Failure::no_daemon)
    say("no daemon answers on this machine; clients cannot attach until one runs: systemctl start gossamerd, or "
        "gossamerd");
  return launch(std::move(options));
}

}  // namespace gossamer::ctl
