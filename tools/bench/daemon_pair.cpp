#include "tools/bench/daemon_pair.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace gossamer::bench {
namespace {

std::string configuration(const std::filesystem::path& folder, const std::string& cluster_key, const std::string& peer,
                          const std::string& overlay, const std::string& sections) {
  return fmt::format(
      "[node]\nstate_dir = \"{0}/state\"\nsocket_dir = \"{0}\"\n"
      "[overlay]\nlisten = \"tcp://127.0.0.1:0\"\ncluster_key_file = \"{1}\"\npeers = [{2}]\n{3}"
      "[log]\nlevel = \"warning\"\n{4}",
      folder.string(), cluster_key, peer.empty() ? "" : '"' + peer + '"', overlay, sections);
}

}  // namespace

DaemonPair::DaemonPair(const std::string& program, const std::string& overlay, const std::string& sections) {
  const std::filesystem::path daemon = program.empty()
                                           ? std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gossamerd"
                                           : std::filesystem::path(program);
  if (!std::filesystem::exists(daemon)) {
    throw std::runtime_error(daemon.string() + " does not exist; name it with --daemon");
  }
  const std::filesystem::path a = folder_.path() / "a", b = folder_.path() / "b";
  first_.emplace(daemon, a, configuration(a, "", "", overlay, sections));
  const std::string address = first_->ask("status").at("node").at("address");
  second_.emplace(daemon, b, configuration(b, a / "state" / "cluster.key", address, overlay, sections));
}

}  // namespace gossamer::bench
