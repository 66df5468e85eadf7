// Lines at the control socket, one request each, to the commands that have to do with the cluster: every line is
// answered by one JSON object on one line. The overlay is real, but has not started, so nothing goes to the network.
// "join" is left out, because it would dial.

#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>

#include "daemon/cluster/cluster_commands.hpp"
#include "daemon/control/control_server.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::daemon;

/// The state of a cluster without files. The folder is removed at once, because only "join" would write to it.
struct EmptyState {
  std::filesystem::path place =
      std::filesystem::temp_directory_path() / ("gossamer-fuzz-" + std::to_string(::getpid()));
  StateFolder folder = StateFolder::open(place).value();
  ClusterState cluster = ClusterState::load(folder, place / "cluster.key", false).value();
  EmptyState() { std::filesystem::remove_all(place); }
};

struct Nobody final : peer::OverlayEvents {
  void link_up(const NodeId&) override {}
  void link_down(const NodeId&, const std::string&) override {}
  void node_dead(const NodeId&) override {}
  void received(const NodeId&, Message&&) override {}
  /// Refuses every new ring, because a change needs the listener, which is not open here.
  std::expected<void, std::string> keep_key_ring(const peer::KeyRing&) override { return std::unexpected("no room"); }
};

peer::Identity identity() {
  static const peer::KeyPair keys = peer::KeyPair::from_secret(cluster_key(1).key);
  return {keys, peer::node_id(keys.public_key)};
}

peer::KeyRing ring(bool with_authority) {
  peer::KeyRing ring(peer::ClusterKeys({cluster_key(30), cluster_key(31)}));
  if (with_authority) ring.set_authority(identity().keys.public_key);
  return ring;
}

/// The commands of a node that is just starting.
class Commands {
 public:
  explicit Commands(bool with_authority)
      : overlay_(
            loop_, {}, identity(), ring(with_authority), nobody_, log(), gossip::Random(1), [] { return TimeUs{1}; },
            [] { return now; }) {}
  std::string answer(std::string_view line, bool from_owner) {
    return control_answer(line,
                          [&](const nlohmann::json& request, const Caller&) {
                            return answer_from(table_, request, [&](CommandFor whom) {
                              return from_owner || whom == CommandFor::everyone;
                            });
                          },
                          {});
  }

 private:
  static std::shared_ptr<spdlog::logger> log() {
    static const auto log = std::make_shared<spdlog::logger>("fuzz", std::make_shared<spdlog::sinks::null_sink_mt>());
    return log;
  }
  static ClusterState& state() {
    static EmptyState state;
    return state.cluster;
  }
  std::vector<ControlCommand> without_join() {
    std::vector<ControlCommand> table = commands_.control_commands();
    std::erase_if(table, [](const ControlCommand& row) { return row.name == std::string_view("join"); });
    return table;
  }

  asio::io_context loop_;
  Nobody nobody_;
  peer::Overlay overlay_;
  ClusterCommands commands_{loop_, overlay_, state(), "fuzz", *log()};
  const std::vector<ControlCommand> table_ = without_join();
};

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gossamer::fuzz::Commands commands[] = {gossamer::fuzz::Commands(false), gossamer::fuzz::Commands(true)};
  std::string_view text = gossamer::fuzz::text_of(data, size);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    for (auto& node : commands) {
      (void)node.answer(line, false);
      const std::string answer = node.answer(line, true);
      GOSSAMER_CHECK(answer.find('\n') == answer.size() - 1);
      GOSSAMER_CHECK(nlohmann::json::parse(answer, nullptr, false).is_object());
    }
  }
  return 0;
}
