// gossamerd reads its options, makes every part of the daemon, hands each part what it needs, and runs the loop.
//
// Exit status: 0 after a clean stop; 1 if it cannot start (state folder, sockets, keys, address); 2 for wrong usage or
// a wrong configuration.

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "daemon/clients/devices.hpp"
#include "daemon/config/config.hpp"
#include "daemon/jobs/checkpoints.hpp"
#include "daemon/log/journal_sink.hpp"
#include "daemon/log/log.hpp"
#include "daemon/node.hpp"
#include "daemon/report/metrics.hpp"
#include "daemon/shell.hpp"
#include "daemon/system/state_folder.hpp"
#include "daemon/system/workers.hpp"

namespace {

using namespace gossamer;
using namespace gossamer::daemon;

/// At the end, the daemon waits this long for the disk to finish a write.
constexpr std::chrono::seconds disk_grace{5};
/// At the end, the daemon waits this long for workers. A processor finishes a task within a second, a GPU may hang.
constexpr std::chrono::seconds gpu_grace{5};

/// With less than this the daemon cannot start, or would soon be without: it takes thirty descriptors itself, two for
/// each link and three for each training process; and its threads' stacks take most of the addresses. ZeroMQ ends the
/// process when it lacks either.
constexpr rlim_t least_open_files = 64;
constexpr rlim_t least_address_bytes = 256 << 20;

enum ExitStatus { clean = 0, cannot_start = 1, wrong_usage = 2 };

struct Arguments {
  std::string config_file;  // empty: the default file if it exists, or else the defaults
  bool print_config = false;
  bool check_config = false;
  bool print_metrics = false;
};

std::expected<Config, std::string> read_config(const std::string& file) {
  std::error_code error;
  const bool none = file.empty() && !std::filesystem::exists(default_config_file, error);
  std::expected<Config, std::string> config = none ? Config{} : load(file.empty() ? default_config_file : file);
  if (!config) return config;
  return resolved(std::move(*config), surroundings());
}

int fail(ExitStatus status, const std::string& message) {
  if (journal_reads_stderr())
    make_journal_sink()->log({"gossamerd", spdlog::level::critical, message});
  else
    std::fprintf(stderr, "gossamerd: %s\n", message.c_str());
  return status;
}

/// Raises the limit on open files as far as it may be raised. The error names a limit that is too low.
std::expected<void, std::string> prepare_limits() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    if (files.rlim_max < least_open_files)
      return std::unexpected(
          fmt::format("at most {} open files are allowed, and a daemon needs {} or more; raise the hard limit "
                      "(LimitNOFILE= in systemd, ulimit -Hn in a shell)",
                      files.rlim_max, least_open_files));
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  rlimit addresses{};
  if (::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur < least_address_bytes)
    return std::unexpected(
        fmt::format("at most {} MiB of addresses are allowed, and a daemon needs {} or more; raise the limit (LimitAS= "
                    "in systemd, ulimit -v in a shell), or bound its memory by MemoryMax= instead",
                    addresses.rlim_cur >> 20, least_address_bytes >> 20));
  return {};
}

/// Lets the C library keep freed pieces as long as a fragment's frames, and 64 MiB at the heap's end. New pages for
/// each frame would take half of an exchange's time (docs/explanation/measurements.md).
void keep_freed_memory() {
  constexpr std::size_t beside_values = 64 << 10;  // more than what a fragment's frames hold besides
  constexpr int at_the_end = 64 << 20;
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(default_fragment_elements * sizeof(float) + beside_values));
  ::mallopt(M_TRIM_THRESHOLD, at_the_end);
}

int serve(const Config& config, const std::string& config_file) {
  std::expected<Log, std::string> log = Log::open(config.log);
  if (!log) return fail(cannot_start, log.error());
  spdlog::logger& logger = log->logger();
  const auto cannot = [&](const std::string& why) {
    logger.critical("cannot start: {}", why);
    return cannot_start;
  };

  std::expected<StateFolder, std::string> state = StateFolder::open(config.node.state_dir);
  if (!state) return cannot(state.error());
  for (const std::string& name : state->empty_files()) {
    logger.warn(
        "{} is empty: what it held is lost, unless an older gossamerd wrote it so; bring it back from a copy of "
        "the state folder, or remove it if nothing is missing",
        (state->path() / name).string());
  }
  const std::expected<std::filesystem::path, std::string> sockets = socket_folder(config);
  if (!sockets) return cannot(sockets.error());

  asio::io_context loop(1);  // one thread runs it
  // The devices are made before the workers that compute on them.
  Devices devices(loop, {.plugin = config.gpus.plugin, .nccl = config.gpus.nccl, .enabled = config.gpus.clients},
                  logger);
  // A fragment has at most one task under way, so no more tasks than this can wait.
  Workers workers(loop, static_cast<std::size_t>(config.node.workers),
                  static_cast<std::size_t>(config.limits.jobs) * max_fragments);
  Checkpoints checkpoints(loop, config.checkpoints);
  auto node = Node::open(loop, config, *state, workers, checkpoints, devices, logger);
  if (!node) return cannot(node.error());
  auto shell = Shell::open(
      loop, config, [&] { return read_config(config_file); }, *sockets, **node, *log);
  if (!shell) return cannot(shell.error());

  const NodeStatus status = (*node)->node_status();
  logger.info("gossamerd {} runs as node {} ({}) at {}; sockets are in {}, state is in {}", GOSSAMER_VERSION,
              status.name, (*node)->id().brief(), status.address, sockets->string(), state->path().string());
  [&]() noexcept { (*shell)->run(); }();  // an exception in the loop is a broken invariant and ends the process
  const bool computed = workers.stop_within(gpu_grace);
  if (!computed) logger.warn("a GPU does not answer: gossamerd ends, and its computation is lost");
  const bool written = checkpoints.stop_within(disk_grace);
  if (!written) {
    logger.warn("the disk of {} does not answer: gossamerd ends, and what was to be written is lost",
                checkpoints.options().folder.string());
  }
  if (!computed || !written) {
    // A thread, the disk or a GPU hangs, so only what others see is cleared away.
    shell->reset();
    node->reset();
    std::_Exit(clean);
  }
  logger.info("stopped");
  return clean;
}

}  // namespace

int main(int argc, char** argv) {
  // NCCL joins GPUs of this process only, and would listen on the first interface that leads outwards.
  ::setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  CLI::App app("The Gossamer daemon: averages the models of this machine's training processes with other nodes'.");
  app.set_version_flag("--version", std::string("gossamerd ") + GOSSAMER_VERSION);
  Arguments arguments;
  app.add_option(
         "--config", arguments.config_file,
         std::string("Configuration file; without it ") + default_config_file + " if that exists, else defaults")
      ->type_name("FILE");
  app.add_flag("--print-config", arguments.print_config,
               "Print a commented configuration with every default, and exit");
  app.add_flag("--print-metrics", arguments.print_metrics, "Print what each metric means, as Markdown, and exit");
  app.add_flag("--check-config", arguments.check_config, "Say what is wrong with the configuration, and exit");
  app.footer(
      "Exit status: 0 after a clean stop, 1 if it cannot start, 2 for wrong usage or configuration.\n"
      "Signals: SIGTERM or SIGINT stops the daemon, a second one at once; SIGHUP reads the configuration again.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? clean : wrong_usage;
  }
  if (arguments.print_config) {
    std::fputs(commented_defaults().c_str(), stdout);
    return clean;
  }
  if (arguments.print_metrics) {
    std::fputs(metrics_document().c_str(), stdout);
    return clean;
  }
  const std::expected<Config, std::string> config = read_config(arguments.config_file);
  if (!config) return fail(wrong_usage, "the configuration is wrong:\n" + config.error());
  if (arguments.check_config) {
    std::puts("the configuration is right");
    return clean;
  }
  keep_freed_memory();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // writing beyond the limit on file sizes is then an error, like a full disk
  if (const auto enough = prepare_limits(); !enough) return fail(cannot_start, "cannot start: " + enough.error());
  try {
    return serve(*config, arguments.config_file);
  } catch (const std::exception& error) {
    return fail(cannot_start, fmt::format("cannot start: {}; look at the limits on memory, processes and open files "
                                          "(MemoryMax=, TasksMax= and LimitNOFILE= in systemd, ulimit -a in a shell)",
                                          error.what()));
  }
}
