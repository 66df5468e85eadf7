// gossamerctl doctor looks at the machine, asks the daemon, and prints the findings of tools/ctl/doctor.hpp.
//
// It reads files below /proc and /sys, tries the daemon's port, and blocks for a few seconds at most. Without a daemon
// it looks only at the machine.

#include "tools/ctl/doctor.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "tools/ctl/gpus.hpp"
#include "tools/ctl/gpus_tool.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

constexpr int most_gpus = 64;
constexpr timeval connect_limit{2, 0};

/// The number at this position in a one-line file.
std::optional<std::uint64_t> number_in(const char* file, int place = 0) {
  std::ifstream stream(file);
  std::uint64_t number = 0;
  for (int i = 0; i <= place; ++i)
    stream >> number;
  return stream ? std::optional(number) : std::nullopt;
}

std::optional<std::uint64_t> memory_available() {
  std::ifstream stream("/proc/meminfo");
  std::string line;
  while (std::getline(stream, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kibibytes = 0;
    if (words >> name >> kibibytes && name == "MemAvailable:") return kibibytes * 1024;
  }
  return std::nullopt;
}

std::string gpu_driver() {
  std::ifstream stream("/sys/module/nvidia/version");
  std::string version;
  std::getline(stream, version);
  return version;
}

std::size_t gpus() {
  std::size_t count = 0;
  for (int i = 0; i < most_gpus; ++i)
    count += ::access(fmt::format("/dev/nvidia{}", i).c_str(), F_OK) == 0 ? 1 : 0;
  return count;
}

bool has_cuda_library() {
  void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) ::dlclose(library);
  return library != nullptr;
}

std::vector<std::string> usual_state_dirs() {
  std::vector<std::string> folders{"/var/lib/gossamer"};
  const char* state_home = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state_home != nullptr && state_home[0] == '/') {
    folders.push_back(std::string(state_home) + "/gossamer");
  } else if (home != nullptr && home[0] == '/') {
    folders.push_back(std::string(home) + "/.local/state/gossamer");
  }
  return folders;
}

/// Whether somebody accepts at tcp://HOST:PORT; nothing if that cannot be found out.
std::optional<bool> answers(const std::string& address) {
  const std::size_t slashes = address.find("//");
  const std::size_t colon = address.rfind(':');
  if (slashes == std::string::npos || colon == std::string::npos || colon < slashes + 2) return std::nullopt;
  std::string host = address.substr(slashes + 2, colon - slashes - 2);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  if (host == "*" || host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return std::nullopt;
  bool connected = false;
  for (const addrinfo* each = found; each != nullptr && !connected; each = each->ai_next) {
    const int fd = ::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &connect_limit, sizeof connect_limit);
    connected = ::connect(fd, each->ai_addr, each->ai_addrlen) == 0;
    ::close(fd);
  }
  ::freeaddrinfo(found);
  return connected;
}

std::vector<Finding> examine_state_dir(const std::filesystem::path& folder) {
  std::vector<Finding> findings;
  const std::pair<const char*, const char*> files[] = {{"node key", "node.key"}, {"cluster key", "cluster.key"}};
  for (const auto& [name, file] : files) {
    const std::string path = (folder / file).string();
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 && errno == EACCES) {
      findings.push_back({Grade::warning, "keys", fmt::format("{} cannot be looked at", folder.string()),
                          "run this as root or as the daemon's user"});
      return findings;
    }
    const bool present = info.st_mode != 0;
    findings.push_back(examine_key({.name = name, .path = path, .present = present, .mode = info.st_mode & 07777U}));
  }
  return findings;
}

void append(std::vector<Finding>& to, std::vector<Finding> more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// Nothing: this process may make no sockets.
std::optional<bool> can_choose_bbr() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  const bool chosen = ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0;
  ::close(descriptor);
  return chosen;
}

/// The facts that this process can see of its machine.
MachineFacts machine_facts() {
  MachineFacts facts;
  timex clock{};
  if (const int state = ::adjtimex(&clock); state >= 0)
    facts.clock = {.synchronised = state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0,
                   .error_s = static_cast<double>(clock.esterror) / 1e6};
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    facts.shared_memory_bytes = std::uint64_t{shared.f_blocks} * shared.f_frsize;
    facts.shared_memory_free_bytes = std::uint64_t{shared.f_bavail} * shared.f_frsize;
  }
  facts.memory_available_bytes = memory_available();
  facts.somaxconn = number_in("/proc/sys/net/core/somaxconn");
  facts.has_bbr = can_choose_bbr();
  facts.tcp_rmem_bytes = number_in("/proc/sys/net/ipv4/tcp_rmem", 2);
  facts.tcp_wmem_bytes = number_in("/proc/sys/net/ipv4/tcp_wmem", 2);
  facts.rmem_max_bytes = number_in("/proc/sys/net/core/rmem_max");
  facts.wmem_max_bytes = number_in("/proc/sys/net/core/wmem_max");
  facts.gpus = gpus();
  facts.gpu_driver = gpu_driver();
  facts.cuda_library = has_cuda_library();
  return facts;
}

/// `state_dir` is where the keys are, if no daemon runs; empty: the usual places.
std::vector<Finding> examine(const std::string& state_dir, const Invocation& call) {
  std::vector<Finding> findings;
  const auto node = call.ask("status");
  // A daemon that hangs would keep each further question waiting, too.
  const auto ask = [&](const char* what) { return node ? call.ask(what) : node; };
  const auto process = ask("doctor");
  const auto peers = ask("peers");
  const auto members = ask("members");
  const MachineFacts machine = machine_facts();
  if (process && node && peers && members) {
    DaemonFacts daemon{.process = process->at("process"),
                       .node = node->at("node"),
                       .peers = peers->at("peers"),
                       .members = members->at("members"),
                       .gpus = machine.gpu_driver.empty() ? 0 : machine.gpus,
                       .port_answers = answers(node->at("node").value("address", ""))};
    append(findings, examine_daemon(daemon));
  } else if (!node && node.error().failure == Failure::no_daemon) {
    findings.push_back({Grade::warning, "daemon", "none answers", node.error().message});
    for (const std::string& folder : state_dir.empty() ? usual_state_dirs() : std::vector<std::string>{state_dir}) {
      std::error_code error;
      if (!state_dir.empty() || std::filesystem::is_directory(folder, error))
        append(findings, examine_state_dir(folder));
    }
  } else {
    const std::string message = !node      ? node.error().message
                                : !process ? process.error().message
                                           : "some answers failed";
    findings.push_back(
        {Grade::problem, "daemon", "it does not answer as this tool expects: " + message,
         "if it does not answer at all, it is stopped (SIGSTOP, a debugger) or hangs: look at its log, and "
         "restart it; otherwise use the gossamerctl of the daemon's version"});
  }
  append(findings, examine_machine(machine));
  const bool hangs = !node && node.error().failure != Failure::no_daemon;
  if (const auto seen = hangs ? std::unexpected(node.error()) : see_gpus(call))
    append(findings, examine_gpus(seen->report));
  return findings;
}

}  // namespace

void add_doctor_command(CLI::App& app, CommandAction& chosen) {
  const auto state_dir = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("doctor", "Look for what is wrong with this node, and say what to do");
  command->add_option("--state-dir", *state_dir, "Where the keys are, if no daemon runs (default: the usual places)")
      ->type_name("DIR");
  command->footer("Exit status: 0 if nothing is wrong but for warnings, 1 if something is.");
  command->callback([state_dir, &chosen] {
    chosen = [state_dir](const Invocation& call) { return call.end(examine(*state_dir, call)); };
  });
}

}  // namespace gossamer::ctl
