#include "tools/ctl/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "peer/keys/certificate.hpp"
#include "tools/ctl/fields.hpp"
#include "tools/ctl/format.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

constexpr std::uint64_t mebibyte = 1u << 20;
/// Clients and links take a few descriptors each; with fewer than this, a large cluster runs out of them.
constexpr std::uint64_t enough_open_files = 4096;
constexpr double full_share = 0.9;
/// Buffers that a GPU copies from are locked in memory, so this much should be allowed.
constexpr std::uint64_t enough_locked_bytes = 64 * mebibyte;
constexpr std::uint64_t least_state_bytes = 16 * mebibyte;
constexpr std::uint64_t enough_state_bytes = 256 * mebibyte;
constexpr std::uint64_t enough_shared_memory_bytes = 64 * mebibyte;
constexpr std::uint64_t enough_memory_bytes = 256 * mebibyte;
/// After a restart all members may dial at the same time, and this many connections may then have to wait.
constexpr std::uint64_t enough_somaxconn = 128;
/// Enough for 1 Gbit/s over 20 ms. With less, a fast link to a distant site is never full.
constexpr std::uint64_t enough_socket_buffer_bytes = 2 * mebibyte;
constexpr unsigned not_others = 077;
constexpr unsigned writable_by_others = 022;

std::optional<std::uint64_t> number(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name) || !object.at(name).is_number()) return std::nullopt;
  return object.at(name).get<std::uint64_t>();
}
std::string amount(std::uint64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}

// --- the machine --------------------------------------------------------------------------------------------------

Finding examine_clock(const MachineFacts::Clock& clock) {
  if (clock.synchronised)
    return ok("clock", fmt::format("synchronised, to {:.0f} ms as the kernel estimates; the difference to members is "
                                   "not measured",
                                   clock.error_s * 1e3));
  return warning("clock",
                 "nothing synchronises it, as far as the kernel knows; the difference to members is not measured",
                 "run chrony or systemd-timesyncd; training does not need it, but expiry of invitations does");
}

Finding examine_memory(std::uint64_t available_bytes) {
  const std::string found = fmt::format("{} available", amount(available_bytes));
  if (available_bytes >= enough_memory_bytes) return ok("memory", found);
  return warning("memory", found, "each job takes up to four copies of its model on this machine");
}

Finding examine_shared_memory(std::uint64_t size_bytes, std::uint64_t free_bytes) {
  const std::string found = fmt::format("/dev/shm has {} free of {}", amount(free_bytes), amount(size_bytes));
  if (free_bytes >= enough_shared_memory_bytes) return ok("shared memory", found);
  return warning("shared memory", found,
                 "data loaders of the training share batches there: mount -o remount,size=50% /dev/shm, or start the "
                 "container with a larger --shm-size");
}

void examine_kernel(const MachineFacts& machine, std::vector<Finding>& findings) {
  if (machine.somaxconn) {
    const std::string found = fmt::format("net.core.somaxconn = {}", *machine.somaxconn);
    findings.push_back(*machine.somaxconn >= enough_somaxconn
                           ? ok("kernel", found)
                           : warning("kernel", found,
                                     fmt::format("sysctl -w net.core.somaxconn={}: members that dial all "
                                                 "at once are turned away",
                                                 enough_somaxconn)));
  }
  if (machine.has_bbr)
    findings.push_back(*machine.has_bbr ? ok("kernel", "BBR can be had as TCP's congestion control")
                                        : warning("kernel", "BBR cannot be had as TCP's congestion control",
                                                  "modprobe tcp_bbr: a link to a distant site that loses packets "
                                                  "stays nearly empty"));
  const auto buffer = [&](const char* setting, const std::optional<std::uint64_t>& bytes) {
    if (!bytes) return;
    const std::string found = fmt::format("{} up to {}", setting, amount(*bytes));
    findings.push_back(*bytes >= enough_socket_buffer_bytes
                           ? ok("kernel", found)
                           : warning("kernel", found,
                                     fmt::format("raise its third number to {} or more: a fast link to a "
                                                 "distant site stays empty",
                                                 enough_socket_buffer_bytes)));
  };
  buffer("net.ipv4.tcp_rmem", machine.tcp_rmem_bytes);
  buffer("net.ipv4.tcp_wmem", machine.tcp_wmem_bytes);
  if (machine.rmem_max_bytes && machine.wmem_max_bytes)
    findings.push_back(
        ok("kernel", fmt::format("net.core.rmem_max = {}, wmem_max = {} (not used: the kernel sizes buffers)",
                                 amount(*machine.rmem_max_bytes), amount(*machine.wmem_max_bytes))));
}

Finding examine_gpu(const MachineFacts& machine) {
  if (machine.gpus == 0 && machine.gpu_driver.empty())
    return ok("GPU", "none is visible; models on the CPU, and copies of those on a GPU, are averaged all the same");
  const std::string found = fmt::format("{} visible, driver {}", machine.gpus,
                                        machine.gpu_driver.empty() ? "not known" : safe_text(machine.gpu_driver));
  if (machine.gpus > 0 && machine.cuda_library) return ok("GPU", found);
  return warning("GPU", found + (machine.cuda_library ? "" : ", libcuda cannot be loaded"),
                 "install the driver's libcuda, or start the container with its GPUs (--gpus all)");
}

// --- the daemon ---------------------------------------------------------------------------------------------------

bool only_here(const std::string& address) {
  return address.find("//127.") != std::string::npos || address.find("//[::1]") != std::string::npos ||
         address.find("//localhost") != std::string::npos;
}

void examine_port(const DaemonFacts& daemon, std::vector<Finding>& findings) {
  const std::string address = text_of(daemon.node, "address");
  if (daemon.port_answers == false)
    return findings.push_back(problem("port", fmt::format("nobody accepts connections at {}", address),
                                      "look at the daemon's log, and for a firewall on this machine"));
  if (only_here(address) && text_of(daemon.process, "advertise") != "none" &&
      !daemon.process.value("peers", json::array()).empty())
    return findings.push_back(
        warning("port", fmt::format("listens at {}: other machines cannot reach it", address),
                "set [overlay] listen = \"tcp://*:26746\", or advertise = \"none\" if it is only to "
                "dial out"));
  findings.push_back(
      ok("port", fmt::format("listens at {}{}", address, only_here(address) ? ", for this machine only" : "")));
}

/// What to do about a link that is down, by the reason that the daemon gives.
const char* advice_on_link(const std::string& note) {
  const auto says = [&](const char* words) { return note.find(words) != std::string::npos; };
  if (says("another program has"))
    return "correct this address where it is named ([overlay] peers here, listen and advertise there), or end that "
           "program";
  if (says("with this node's key"))
    return "was its state folder copied? End one of the two, and give it a state folder of its own: it is a new node, "
           "which an invitation lets in";
  if (says("denied here")) return "'gossamerctl allow' with its id lets it in again";
  if (says("denied")) return "'gossamerctl allow' with this node's id, on a member, lets it in again";
  if (says("certificate")) return "'gossamerctl approve' with the authority's key, on a member, gives a new one";
  return "see that it runs, holds the same cluster key, and that no firewall is between";
}

/// Checks both directions as far as links show them: a link that another node dialled proves that this node can be
/// reached.
void examine_links(const DaemonFacts& daemon, std::vector<Finding>& findings) {
  std::size_t up = 0;
  std::size_t by_others = 0;
  std::size_t plain = 0;
  for (const json& peer : daemon.peers) {
    const bool is_up = peer.value("up", false);
    up += is_up ? 1 : 0;
    by_others += is_up && !peer.value("dialled_by_us", false) ? 1 : 0;
    plain += is_up && text_of(peer, "bulk") == "plain" ? 1 : 0;
    const std::string note = text_of(peer, "note");
    if (is_up || note.empty()) continue;
    findings.push_back(
        warning("links", fmt::format("{} is not linked: {}", text_of(peer, "address"), note), advice_on_link(note)));
  }
  if (plain > 0)
    findings.push_back(warning("links", fmt::format("{} carry models unencrypted", plain),
                               "set [overlay] bulk = \"sealed\", unless nobody else can listen in on this network"));
  const std::size_t configured = daemon.process.value("peers", json::array()).size();
  if (up == 0 && configured > 0)
    return findings.push_back(problem("links", fmt::format("none of {} configured peers is linked", configured),
                                      "this node trains alone until one is; 'gossamerctl peers' says why"));
  if (up == 0 && !daemon.peers.empty())
    return findings.push_back(problem("links", fmt::format("none to {} known nodes", daemon.peers.size()),
                                      "this node trains alone until there is one"));
  if (up == 0) return findings.push_back(ok("links", "none; no peers are configured"));
  findings.push_back(
      ok("links", fmt::format("{} up; {} dialled from here, {} by the other end{}", up, up - by_others, by_others,
                              by_others == 0 ? " (that this node can be reached is not shown)" : "")));
}

void examine_members(const DaemonFacts& daemon, std::vector<Finding>& findings) {
  std::size_t suspected = 0;
  for (const json& member : daemon.members) {
    if (text_of(member, "state") != "suspected") continue;
    ++suspected;
    findings.push_back(warning("members", fmt::format("{} is suspected to be dead", text_of(member, "node")),
                               "it will be certain in a few seconds; look at that machine"));
  }
  if (suspected == 0)
    findings.push_back(ok("members", fmt::format("{} others, none suspected", daemon.members.size())));
  // Without links, probes fail for another reason.
  const auto is_up = [](const json& peer) { return peer.value("up", false); };
  const auto health = std::ranges::any_of(daemon.peers, is_up) ? number(daemon.node, "health") : std::nullopt;
  if (health.value_or(0) > 0)
    findings.push_back(warning("members", fmt::format("this node answers late (health {})", *health),
                               "the machine is overloaded: fewer trainers, or a core for the daemon"));
}

void examine_limits(const json& process, std::vector<Finding>& findings) {
  const auto open_files = number(process, "open_files");
  const auto most = number(process, "max_open_files");
  if (open_files && most) {
    const std::string found = fmt::format("{} files open of at most {}", *open_files, *most);
    const char* advice = "raise LimitNOFILE= of the unit, or ulimit -n, to 65536";
    if (static_cast<double>(*open_files) > full_share * static_cast<double>(*most)) {
      findings.push_back(problem("limits", found, advice));
    } else if (*most < enough_open_files) {
      findings.push_back(warning("limits", found, advice));
    } else {
      findings.push_back(ok("limits", found));
    }
  }
  if (!process.contains("max_locked_bytes")) return;
  const auto locked = number(process, "max_locked_bytes");
  const std::string found =
      locked ? fmt::format("{} of locked memory", amount(*locked)) : "locked memory without a limit";
  findings.push_back(
      !locked || *locked >= enough_locked_bytes
          ? ok("limits", found)
          : warning("limits", found, "only with GPUs: set LimitMEMLOCK=infinity of the unit, or ulimit -l"));
}

void examine_state(const json& process, std::vector<Finding>& findings) {
  const auto free_bytes = number(process, "state_free_bytes");
  if (!free_bytes) return;
  const std::string found = fmt::format("{} has {} free", text_of(process, "state_dir"), amount(*free_bytes));
  if (const auto mode = number(process, "state_mode"); mode && (*mode & writable_by_others) != 0)
    findings.push_back(problem(
        "state", fmt::format("others can replace the files in {} (mode {:04o})", text_of(process, "state_dir"), *mode),
        "chmod 700 that folder; if others had access, make new keys"));
  const char* advice = "make room: the daemon keeps its keys and its place there, and cannot start without";
  findings.push_back(*free_bytes < least_state_bytes    ? problem("state", found, advice)
                     : *free_bytes < enough_state_bytes ? warning("state", found, advice)
                                                        : ok("state", found));
}

KeyFile key_file_of(const json& key) {
  return {.name = text_of(key, "name"),
          .path = text_of(key, "path"),
          .present = key.value("present", false),
          .mode = key.value("mode", 0U),
          .own = key.value("own", true)};
}

/// Of one that ends soon, or has ended, the daemon's watch tells.
void examine_certificate(const DaemonFacts& daemon, std::vector<Finding>& findings) {
  const auto ends_us = number(daemon.node, "certificate_ends_us");
  const json watched = daemon.node.value("findings", json::array());
  const bool is_told = std::ranges::any_of(watched, [](const json& one) { return one.at("rule") == "certificate"; });
  if (ends_us.value_or(0) > 0 && !is_told)
    findings.push_back(
        ok("certificate", fmt::format("it counts until {}", peer::date_text(static_cast<TimeUs>(*ends_us)))));
}

/// Without the plug-in, models on GPUs go over the bus, which is slower but also correct.
void examine_gpu_plugin(const DaemonFacts& daemon, std::vector<Finding>& findings) {
  const json plugin = daemon.process.value("gpu_plugin", json::object());
  if (daemon.gpus == 0 || !plugin.value("wanted", false)) return;
  const std::string path = text_of(plugin, "path");
  findings.push_back(plugin.value("present", false)
                         ? ok("GPU plug-in", "models in the memory of GPUs are averaged there: " + path)
                         : warning("GPU plug-in",
                                   path + " is not there: models on GPUs are exchanged through host memory",
                                   "install the package gossamer-cuda, or set [gpus] clients = false"));
}

}  // namespace

Finding examine_key(const KeyFile& file) {
  if (!file.present)
    return problem("keys", fmt::format("the {} is not there: {}", file.name, file.path),
                   "a daemon makes its node key at its first start; copy the cluster key from a member, mode 0600");
  if ((file.mode & not_others) != 0)
    return problem("keys",
                   fmt::format("the {} can be read by others (mode {:04o}): {}", file.name, file.mode, file.path),
                   fmt::format("chmod 600 {}; if others had access, make a new one", file.path));
  if (!file.own)
    return problem("keys", fmt::format("the {} does not belong to the daemon's user: {}", file.name, file.path),
                   "chown it to the user that gossamerd runs as");
  return ok("keys", fmt::format("the {} is there, for its owner only: {}", file.name, file.path));
}

std::vector<Finding> examine_machine(const MachineFacts& machine) {
  std::vector<Finding> findings;
  if (machine.clock) findings.push_back(examine_clock(*machine.clock));
  if (machine.memory_available_bytes) findings.push_back(examine_memory(*machine.memory_available_bytes));
  if (machine.shared_memory_bytes && machine.shared_memory_free_bytes)
    findings.push_back(examine_shared_memory(*machine.shared_memory_bytes, *machine.shared_memory_free_bytes));
  examine_kernel(machine, findings);
  findings.push_back(examine_gpu(machine));
  return findings;
}

std::vector<Finding> examine_daemon(const DaemonFacts& daemon) {
  std::vector<Finding> findings;
  const std::string state = text_of(daemon.node, "state");
  const std::string found = fmt::format("{} {}, for {}", text_of(daemon.node, "version"), state,
                                        duration_text(daemon.node.value("uptime_s", 0.0)));
  findings.push_back(
      state == "running"
          ? ok("daemon", found)
          : warning("daemon", found, state == "drained" ? "'gossamerctl drain --off' ends it" : "it is about to end"));
  for (const json& key : daemon.process.value("keys", json::array()))
    findings.push_back(examine_key(key_file_of(key)));
  examine_certificate(daemon, findings);
  std::ranges::move(watched(daemon.node, "", ""), std::back_inserter(findings));
  examine_port(daemon, findings);
  examine_links(daemon, findings);
  examine_members(daemon, findings);
  examine_limits(daemon.process, findings);
  examine_gpu_plugin(daemon, findings);
  examine_state(daemon.process, findings);
  return findings;
}

}  // namespace gossamer::ctl
