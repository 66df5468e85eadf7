// gossamerctl cluster: starts, shows and stops a local cluster (local_cluster.hpp), and runs a program on its nodes.
//
// start and stop hold a lock on the folder, so that only one of them changes it at a time. start blocks until all nodes
// are linked, and stop until all daemons have ended.

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/local_cluster.hpp"
#include "tools/ctl/local_daemon.hpp"
#include "tools/ctl/run/launcher.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

template <class Value>
using Or = std::expected<Value, ControlError>;

constexpr std::chrono::seconds start_timeout{30};
/// A daemon finishes its exchanges and its writes to the disk, each for a few seconds at most.
constexpr std::chrono::seconds stop_timeout{30};
constexpr std::chrono::milliseconds start_poll{50};
constexpr std::size_t cluster_key_bytes = 32;
constexpr std::size_t log_lines_shown = 8;
constexpr const char* folder_text = "Where the cluster is (default: ~/.local/state/gossamer/cluster)";

struct LocalOptions {
  std::size_t nodes = 0;  ///< 0: as many as there are, or the usual number
  std::string folder;     ///< empty: the usual one
  bool remove = false;
  std::vector<std::string> without_dashes;

  /// The option with which other commands find the same cluster.
  [[nodiscard]] std::string as_option() const { return folder.empty() ? "" : " --folder " + shell_word(folder); }
};

std::unexpected<ControlError> failed(const fs::path& path, const char* what, int error) {
  return failure(
      fmt::format("{} {}: {}; name another folder with --folder", path.string(), what, std::strerror(error)));
}

// --- the folder -----------------------------------------------------------------------------------------------------

Or<fs::path> folder_of(const LocalOptions& options) {
  std::expected<fs::path, std::string> folder = fs::path();
  std::error_code error;
  if (options.folder.empty()) {
    folder = usual_local_folder(std::getenv("XDG_STATE_HOME"), std::getenv("HOME"));
  } else {
    folder = fs::absolute(options.folder, error).lexically_normal();
  }
  if (!folder) return wrong_usage(folder.error());
  if (!folder->has_filename()) *folder = folder->parent_path();  // the path ended with a slash
  if (const std::string problem = folder_problem(*folder); !problem.empty()) return wrong_usage(problem);
  return *folder;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

/// Writes the whole file, or leaves the old one. Returns whether the content has changed.
Or<bool> write_file(const fs::path& path, const std::string& content) {
  if (content_of(path) == content) return false;
  const fs::path fresh = path.string() + ".new";
  const FileDescriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  const ssize_t written = file ? ::write(file.get(), content.data(), content.size()) : -1;
  if (written >= 0 && written < static_cast<ssize_t>(content.size())) errno = ENOSPC;
  if (written != static_cast<ssize_t>(content.size()) || ::rename(fresh.c_str(), path.c_str()) != 0)
    return failed(path, "cannot be written", errno);
  return true;
}

/// The cluster in the folder, without nodes if there is none.
Or<LocalCluster> read_cluster(const fs::path& folder) {
  LocalCluster cluster{.folder = folder, .ports = {}};
  std::error_code error;
  if (!fs::exists(cluster.record(), error)) return cluster;
  if (::access(cluster.record().c_str(), R_OK) != 0) return failed(cluster.record(), "cannot be read", errno);
  auto ports = parse_record(content_of(cluster.record()));
  if (!ports) return failure(fmt::format("{}: {}", cluster.record().string(), ports.error()));
  cluster.ports = std::move(*ports);
  return cluster;
}

Or<LocalCluster> existing_cluster(const LocalOptions& options) {
  const auto folder = folder_of(options);
  if (!folder) return std::unexpected(folder.error());
  auto cluster = read_cluster(*folder);
  if (cluster && cluster->ports.empty())
    return std::unexpected(ControlError{
        Failure::no_daemon, fmt::format("there is no local cluster in {}: 'gossamerctl cluster start {}{}' makes one",
                                        folder->string(), usual_local_nodes, options.as_option())});
  return cluster;
}

Or<FileDescriptor> lock(const LocalCluster& cluster) {
  FileDescriptor file(::open(cluster.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return failed(cluster.lock(), "cannot be written", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  return failure(
      fmt::format("another gossamerctl starts or stops the cluster in {} just now: wait until it has "
                  "ended",
                  cluster.folder.string()));
}

/// Makes the folder. It is an error if the folder exists and holds files of other programs.
Or<void> make_folder(const LocalCluster& cluster) {
  std::error_code error;
  fs::create_directories(cluster.folder.parent_path(), error);
  if (::mkdir(cluster.folder.c_str(), 0700) != 0 && errno != EEXIST)
    return failed(cluster.folder, "cannot be made", errno);
  if (!fs::is_directory(cluster.folder, error)) return failed(cluster.folder, "cannot be used", ENOTDIR);
  if (!cluster.ports.empty()) return {};
  for (const auto& entry : fs::directory_iterator(cluster.folder, error))
    if (entry.path() != cluster.lock())
      return wrong_usage(fmt::format("{} holds other files, such as {}: name a folder of its own with --folder",
                                     cluster.folder.string(), entry.path().filename().string()));
  return {};
}

/// Writes the cluster key for each node. Each has a file of its own, because its daemon replaces the key on a rotation.
Or<void> write_keys(const LocalCluster& cluster) {
  std::string key;
  for (std::size_t i = 0; i < cluster.ports.size() && key.empty(); ++i)
    key = content_of(cluster.node(i).cluster_key);
  if (key.empty()) {
    std::array<std::uint8_t, cluster_key_bytes> random{};
    if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
      return failure(fmt::format("no key can be drawn: {}", std::strerror(errno)));
    key = fmt::format("{:02x}\n", fmt::join(random, ""));
  }
  for (std::size_t i = 0; i < cluster.ports.size(); ++i) {
    const LocalNode node = cluster.node(i);
    for (const fs::path& folder : {node.folder, node.state})
      if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed(folder, "cannot be made", errno);
    std::error_code error;
    if (fs::exists(node.cluster_key, error)) continue;
    if (const auto written = write_file(node.cluster_key, key); !written) return std::unexpected(written.error());
  }
  return {};
}

// --- ports ----------------------------------------------------------------------------------------------------------

/// A socket bound to this port of loopback, or to any free one; nothing if it is taken. It does not listen.
FileDescriptor bound_to(std::uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int yes = 1;  // closed connections of a former daemon do not keep the port taken
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

std::uint16_t port_of(const FileDescriptor& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

/// Gives a port to each node that does not run and has none, or one that another program has taken meanwhile.
Or<void> choose_ports(LocalCluster& cluster, const std::map<std::size_t, LocalDaemon>& running) {
  std::vector<FileDescriptor> held;  // bound until all ports are chosen, so that no two nodes get the same
  for (std::size_t i = 0; i < cluster.ports.size(); ++i) {
    if (running.contains(i)) continue;
    FileDescriptor socket = cluster.ports[i] == 0 ? FileDescriptor() : bound_to(cluster.ports[i]);
    if (!socket) socket = bound_to(0);
    if (!socket) return failure(fmt::format("no port is free on 127.0.0.1: {}", std::strerror(errno)));
    cluster.ports[i] = port_of(socket);
    held.push_back(std::move(socket));
  }
  return {};
}

// --- start ----------------------------------------------------------------------------------------------------------

std::map<std::size_t, LocalDaemon> running_daemons(const LocalCluster& cluster) {
  std::map<std::size_t, LocalDaemon> running;
  for (std::size_t i = 0; i < cluster.ports.size(); ++i)
    if (auto daemon = LocalDaemon::at(cluster.node(i).control_socket)) running.emplace(i, std::move(*daemon));
  return running;
}

json described(const LocalCluster& cluster) {
  json nodes = json::array();
  for (std::size_t i = 0; i < cluster.ports.size(); ++i) {
    const LocalNode node = cluster.node(i);
    const auto daemon = LocalDaemon::at(node.control_socket);
    const JsonAnswer status = daemon ? request({node.control_socket.string()}, {{"command", "status"}}) : JsonAnswer();
    const json said = status && status->contains("node") ? status->at("node") : json::object();
    nodes.push_back({{"name", node.name},
                     {"running", daemon.has_value()},
                     {"pid", daemon ? daemon->pid() : 0},
                     {"neighbours", said.value("neighbours", 0)},
                     {"address", cluster.address(i)},
                     {"page", said.value("page", "")},
                     {"client_socket", node.client_socket.string()},
                     {"control_socket", node.control_socket.string()},
                     {"configuration", node.configuration.string()},
                     {"log", node.log.string()}});
  }
  return {{"folder", cluster.folder.string()}, {"nodes", std::move(nodes)}};
}

/// The last lines that were written after the byte `begin`.
std::string log_since(const fs::path& log, std::uintmax_t begin) {
  std::ifstream file(log);
  file.seekg(static_cast<std::streamoff>(begin));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back("\n  " + safe_text(line));
    if (lines.size() > log_lines_shown) lines.erase(lines.begin());
  }
  return fmt::format("{}", fmt::join(lines, ""));
}

struct Launched {
  LocalDaemon daemon;
  LocalNode node;
  std::uintmax_t log_bytes = 0;  ///< size of the log before the daemon began
};

Or<std::vector<Launched>> launch_missing(const LocalCluster& cluster,
                                         const std::map<std::size_t, LocalDaemon>& running) {
  std::vector<Launched> launched;
  if (running.size() == cluster.ports.size()) return launched;
  const auto program = daemon_program();
  if (!program) return failure(program.error());
  for (std::size_t i = 0; i < cluster.ports.size(); ++i) {
    if (running.contains(i)) continue;
    const LocalNode node = cluster.node(i);
    std::error_code error;
    const std::uintmax_t log_bytes = fs::exists(node.log, error) ? fs::file_size(node.log, error) : 0;
    const auto pid = start_daemon(*program, node.configuration, node.log);
    if (!pid) return failure(pid.error());
    auto daemon = LocalDaemon::of(*pid);
    if (!daemon) return failure(fmt::format("process {} cannot be watched: {}", *pid, std::strerror(errno)));
    launched.push_back({std::move(*daemon), node, log_bytes});
  }
  return launched;
}

/// Waits until all nodes are linked, and returns the description of the cluster.
JsonAnswer wait_for_links(const LocalCluster& cluster, const std::vector<Launched>& launched) {
  const auto deadline = std::chrono::steady_clock::now() + start_timeout;
  while (true) {
    json now = described(cluster);
    if (all_linked(now)) return now;
    for (const Launched& each : launched)
      if (each.daemon.ended_within({}))
        return failure(fmt::format("the daemon of {} has ended; its log says:{}", each.node.name,
                                   log_since(each.node.log, each.log_bytes)));
    if (std::chrono::steady_clock::now() > deadline)
      return failure(fmt::format("not all nodes run and are linked after {} s; their logs are in {}\n{}",
                                 start_timeout.count(), cluster.folder.string(), local_cluster_table(now, false)));
    std::this_thread::sleep_for(start_poll);
  }
}

JsonAnswer start(const LocalOptions& options) {
  const auto folder = folder_of(options);
  if (!folder) return std::unexpected(folder.error());
  auto cluster = read_cluster(*folder);
  if (!cluster) return std::unexpected(cluster.error());
  if (const auto made = make_folder(*cluster); !made) return std::unexpected(made.error());
  const auto locked = lock(*cluster);
  if (!locked) return std::unexpected(locked.error());
  cluster = read_cluster(*folder);  // another process may have changed the cluster before this one had the lock
  if (!cluster) return std::unexpected(cluster.error());
  const std::size_t before = cluster->ports.size();
  if (options.nodes != 0 && options.nodes < before)
    return wrong_usage(
        fmt::format("the cluster in {} has {} nodes: 'gossamerctl cluster stop --remove{}' and start again for a "
                    "smaller one, or name another folder with --folder",
                    folder->string(), before, options.as_option()));
  cluster->ports.resize(std::max(before, options.nodes == 0 && before == 0 ? usual_local_nodes : options.nodes));

  const auto running = running_daemons(*cluster);
  if (const auto chosen = choose_ports(*cluster, running); !chosen) return std::unexpected(chosen.error());
  if (const auto noted = write_file(cluster->record(), record_text(cluster->ports)); !noted)
    return std::unexpected(noted.error());
  if (const auto written = write_keys(*cluster); !written) return std::unexpected(written.error());
  for (std::size_t i = 0; i < cluster->ports.size(); ++i) {
    const auto changed = write_file(cluster->node(i).configuration, configuration_text(*cluster, i));
    if (!changed) return std::unexpected(changed.error());
    if (const auto daemon = running.find(i); *changed && daemon != running.end()) daemon->second.signal(SIGHUP);
  }
  const auto launched = launch_missing(*cluster, running);
  if (!launched) return std::unexpected(launched.error());
  auto answer = wait_for_links(*cluster, *launched);
  if (!answer) return answer;
  (*answer)["started"] = json::array();
  for (const Launched& each : *launched)
    (*answer)["started"].push_back(each.node.name);
  return answer;
}

std::string start_words(const json& answer, const std::string& option, bool colour) {
  const std::size_t started = answer.at("started").size();
  const std::size_t all = answer.at("nodes").size();
  std::vector<std::string> names;
  for (const json& name : answer.at("started"))
    names.push_back(name.get<std::string>());
  const std::string what = started == 0 ? fmt::format("the cluster runs already: {} nodes, linked\n", all)
                           : started == all
                               ? fmt::format("{} nodes run and are linked\n", all)
                               : fmt::format("started {}; {} nodes run and are linked\n", fmt::join(names, ", "), all);
  return what + local_cluster_table(answer, colour) + how_to_use(answer, option);
}

// --- status, stop and run -------------------------------------------------------------------------------------------

CommandResult show(const LocalOptions& options, const Invocation& call) {
  const auto cluster = existing_cluster(options);
  if (!cluster) return std::unexpected(cluster.error());
  const json answer = described(*cluster);
  const bool whole = all_linked(answer);
  const std::string advice =
      whole ? how_to_use(answer, options.as_option())
            : fmt::format(
                  "\nnot all nodes run and are linked: 'gossamerctl cluster start{}' starts those that are "
                  "missing\n",
                  options.as_option());
  return CommandEnd{call.as_json ? json_line(answer) : local_cluster_table(answer, call.colour) + advice,
                    whole ? 0 : 1};
}

/// Removes the sockets that killed daemons have left. With `all`, also removes everything else of the cluster.
Or<void> clear(const LocalCluster& cluster, bool all) {
  std::error_code error;
  for (std::size_t i = 0; i < cluster.ports.size(); ++i) {
    const LocalNode node = cluster.node(i);
    for (const fs::path& socket : {node.client_socket, node.control_socket, node.average_socket})
      fs::remove(socket, error);
    if (!all) continue;
    fs::remove_all(node.folder, error);
    if (error) return failure(fmt::format("{} cannot be removed: {}", node.folder.string(), error.message()));
  }
  if (!all) return {};
  fs::remove(cluster.record(), error);
  fs::remove(cluster.lock(), error);
  fs::remove(cluster.folder, error);  // fails if the folder has other files, which stay
  return {};
}

JsonAnswer stop(const LocalOptions& options) {
  const auto cluster = existing_cluster(options);
  if (!cluster) return std::unexpected(cluster.error());
  const auto locked = lock(*cluster);
  if (!locked) return std::unexpected(locked.error());
  const auto running = running_daemons(*cluster);
  for (const auto& [index, daemon] : running)
    daemon.signal(SIGTERM);
  json stopped = json::array();
  const auto deadline = std::chrono::steady_clock::now() + stop_timeout;
  for (const auto& [index, daemon] : running) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (!daemon.ended_within(std::max(left, std::chrono::milliseconds(0))))
      return failure(fmt::format("{}, process {}, has not ended {} s after SIGTERM: its log, {}, may say why",
                                 cluster->node(index).name, daemon.pid(), stop_timeout.count(),
                                 cluster->node(index).log.string()));
    stopped.push_back(cluster->node(index).name);
  }
  if (const auto cleared = clear(*cluster, options.remove); !cleared) return std::unexpected(cleared.error());
  return json{{"folder", cluster->folder.string()}, {"stopped", std::move(stopped)}, {"removed", options.remove}};
}

std::string stop_words(const json& answer) {
  const std::size_t stopped = answer.at("stopped").size();
  const std::string folder = answer.at("folder").get<std::string>();
  return fmt::format("{}{}\n", stopped == 0 ? "no node was running" : fmt::format("{} nodes have stopped", stopped),
                     answer.at("removed").get<bool>()
                         ? fmt::format("; {} is removed", folder)
                         : fmt::format("; their keys, models and logs are still in {}", folder));
}

CommandResult run_on_nodes(const LocalOptions& options, const Invocation& call) {
  if (!options.without_dashes.empty() || call.behind_dashes.empty())
    return wrong_usage("write -- before the command: gossamerctl cluster run -- python3 train.py");
  const auto cluster = existing_cluster(options);
  if (!cluster) return std::unexpected(cluster.error());
  LaunchOptions launching{.command = call.behind_dashes,
                          .clients = {},
                          .restart = {},
                          .folder = {},
                          .colour = std::getenv("NO_COLOR") == nullptr};
  const json now = described(*cluster);
  for (const json& node : now.at("nodes")) {
    if (!node.at("running").get<bool>())
      return std::unexpected(
          ControlError{Failure::no_daemon, fmt::format("{} does not run: 'gossamerctl cluster start{}' starts it",
                                                       node.at("name").get<std::string>(), options.as_option())});
    launching.clients.push_back({.where = node.at("name"),
                                 .environment = {fmt::format("{}={}", layout::client_socket_environment,
                                                             node.at("client_socket").get<std::string>()),
                                                 fmt::format("{}={}", layout::control_socket_environment,
                                                             node.at("control_socket").get<std::string>())},
                                 .cpus = {}});
  }
  const auto status = launch(std::move(launching));
  if (!status) return wrong_usage(status.error());
  return CommandEnd{.status = *status};
}

}  // namespace

void add_local_cluster_commands(CLI::App& app, CommandAction& chosen) {
  const auto options = std::make_shared<LocalOptions>();
  CLI::App* cluster =
      app.add_subcommand("cluster", "Several nodes on this machine, to try things: no root, no network");
  cluster->require_subcommand(1);

  CLI::App* starting =
      cluster->add_subcommand("start", "Start the nodes that do not run, and wait until all are linked");
  starting->add_option("NODES", options->nodes, "How many; without it as many as there are, or 3 for a new cluster")
      ->type_name("")
      ->check(CLI::Range(std::size_t{1}, max_local_nodes));
  starting->footer(
      "Each node is a gossamerd with keys, state, sockets and a log of its own, and listens at a free port of\n"
      "127.0.0.1. It runs until 'gossamerctl cluster stop', whatever becomes of the terminal. More nodes than there\n"
      "are add some. A node whose port another program has taken gets another one.");
  starting->add_option("--folder", options->folder, folder_text)->type_name("DIR");
  starting->callback([options, &chosen] {
    chosen = [options](const Invocation& call) {
      return call.end(start(*options), [&](const json& answer, bool colour) {
        return start_words(answer, options->as_option(), colour);
      });
    };
  });

  CLI::App* status = cluster->add_subcommand("status", "The nodes: which run, their links, addresses and pages");
  status->footer("Exit status: 1 if not all nodes run and are linked.");
  status->add_option("--folder", options->folder, folder_text)->type_name("DIR");
  status->callback([options, &chosen] { chosen = [options](const Invocation& call) { return show(*options, call); }; });

  CLI::App* stopping = cluster->add_subcommand("stop", "Stop the nodes; their state stays for the next start");
  stopping->add_flag("--remove", options->remove, "Remove their keys, models and logs as well");
  stopping->add_option("--folder", options->folder, folder_text)->type_name("DIR");
  stopping->callback([options, &chosen] {
    chosen = [options](const Invocation& call) {
      return call.end(stop(*options), [](const json& answer, bool) { return stop_words(answer); });
    };
  });

  CLI::App* run = cluster->add_subcommand("run", "Run a program on each node, and print their lines");
  run->add_option("command", options->without_dashes, "After --: the program to start, with its arguments")
      ->type_name("");
  run->footer(
      "Each gets GOSSAMER_SOCKET, GOSSAMER_LOCAL_RANK (0 for node-1) and GOSSAMER_LOCAL_WORLD_SIZE. Signals, output\n"
      "and exit status are as for 'gossamerctl run'.");
  run->add_option("--folder", options->folder, folder_text)->type_name("DIR");
  run->callback(
      [options, &chosen] { chosen = [options](const Invocation& call) { return run_on_nodes(*options, call); }; });
}

}  // namespace gossamer::ctl
