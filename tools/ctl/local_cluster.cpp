#include "tools/ctl/local_cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gossip/plain_text.hpp"
#include "sdk/layout/attach.hpp"
#include "sdk/layout/average.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tools/ctl/fields.hpp"

namespace gossamer::ctl {
namespace {

using nlohmann::json;

constexpr int record_version = 1;
constexpr std::size_t max_folder_bytes = 4096;
constexpr std::string_view below_usual_folder = "gossamer/cluster";

/// The path as a string of TOML. A string of JSON is one.
std::string quoted(const std::filesystem::path& path) {
  return json(path.string()).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

LocalNode LocalCluster::node(std::size_t index) const {
  const std::string name = fmt::format("node-{}", index + 1);
  const std::filesystem::path own = folder / name;
  return {.name = name,
          .folder = own,
          .configuration = own / "gossamer.toml",
          .log = own / "gossamerd.log",
          .state = own / "state",
          .cluster_key = own / "state" / "cluster.key",
          .client_socket = own / layout::client_socket_name,
          .control_socket = own / layout::control_socket_name,
          .average_socket = own / layout::average_socket_name};
}

std::string LocalCluster::address(std::size_t index) const {
  return fmt::format("tcp://127.0.0.1:{}", ports.at(index));
}

std::expected<std::filesystem::path, std::string> usual_local_folder(const char* state_home, const char* home) {
  if (state_home != nullptr && state_home[0] == '/') return std::filesystem::path(state_home) / below_usual_folder;
  if (home != nullptr && home[0] == '/') return std::filesystem::path(home) / ".local/state" / below_usual_folder;
  return std::unexpected("neither XDG_STATE_HOME nor HOME names a folder: give one with --folder");
}

std::string folder_problem(const std::filesystem::path& folder) {
  const std::string path = folder.string();
  if (!is_plain_text(path, max_folder_bytes))
    return "the folder's path has characters that no configuration can hold: give another with --folder";
  const LocalNode last = LocalCluster{.folder = folder, .ports = {}}.node(max_local_nodes - 1);
  const std::size_t longest = std::max(
      {last.client_socket.native().size(), last.control_socket.native().size(), last.average_socket.native().size()});
  if (longest <= layout::max_socket_path_bytes) return "";
  const std::size_t most = layout::max_socket_path_bytes - (longest - path.size());
  return fmt::format(
      "{} is too long a path: it has {} bytes, and at most {} leave room for the sockets below it; give a shorter one "
      "with --folder",
      path, path.size(), most);
}

std::string record_text(const std::vector<std::uint16_t>& ports) {
  return json{{"version", record_version}, {"ports", ports}}.dump() + "\n";
}

std::expected<std::vector<std::uint16_t>, std::string> parse_record(std::string_view text) {
  const json record = json::parse(text, nullptr, false);
  if (!record.is_object() || !record.contains("version") || !record.contains("ports") || !record["ports"].is_array())
    return std::unexpected("it is not a file of 'gossamerctl cluster'");
  if (record["version"] != record_version)
    return std::unexpected("it is of another version of gossamerctl: stop the cluster with that one");
  const json& listed = record["ports"];
  if (listed.empty() || listed.size() > max_local_nodes)
    return std::unexpected(fmt::format("it has {} nodes, where 1 to {} are possible", listed.size(), max_local_nodes));
  std::vector<std::uint16_t> ports;
  for (const json& port : listed) {
    if (!port.is_number_unsigned() || port.get<std::uint64_t>() > UINT16_MAX)
      return std::unexpected("a port in it is not a number up to 65535");
    ports.push_back(port.get<std::uint16_t>());
  }
  return ports;
}

std::string configuration_text(const LocalCluster& cluster, std::size_t index) {
  const LocalNode node = cluster.node(index);
  json others = json::array();
  for (std::size_t other = 0; other < cluster.ports.size(); ++other)
    if (other != index) others.push_back(cluster.address(other));
  return fmt::format(
      "# Written by 'gossamerctl cluster start', which writes it again at each start.\n"
      "[node]\n"
      "name = \"{}\"\n"
      "state_dir = {}\n"
      "socket_dir = {}\n"
      "# The nodes share one machine, with what trains on it.\n"
      "workers = 1\n"
      "io_threads = 1\n"
      "\n"
      "[overlay]\n"
      "listen = \"{}\"\n"
      "peers = {}\n"
      "cluster_key_file = {}\n"
      "\n"
      "[metrics]\n"
      "listen = \"127.0.0.1:0\"\n",
      node.name, quoted(node.state), quoted(node.folder), cluster.address(index), others.dump(),
      quoted(node.cluster_key));
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,@%";
  if (!text.empty() && text.find_first_not_of(harmless) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text)
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

bool all_linked(const json& answer) {
  const json& nodes = answer.at("nodes");
  return std::ranges::all_of(nodes, [&](const json& node) {
    return node.at("running").get<bool>() && node.at("neighbours").get<std::size_t>() + 1 >= nodes.size();
  });
}

std::string local_cluster_table(const json& answer, bool colour) {
  Table table{.heading = {"node", "process", "links", "address", "page"}};
  for (const json& node : answer.at("nodes")) {
    const bool running = node.at("running").get<bool>();
    table.rows.push_back(
        {{.text = text_of(node, "name")},
         running ? Cell{.text = fmt::format("{}", node.at("pid").get<int>()), .right = true}
                 : Cell{.text = "not running", .tone = Tone::bad},
         {.text = running ? fmt::format("{}", node.at("neighbours").get<std::size_t>()) : "-", .right = true},
         {.text = text_of(node, "address")},
         {.text = running ? text_of(node, "page") : "-"}});
  }
  return table.render(colour);
}

std::string how_to_use(const json& answer, const std::string& option) {
  std::string text = "\nA program trains on a node if it has this in its environment:\n";
  for (const json& node : answer.at("nodes"))
    text += fmt::format("  export GOSSAMER_SOCKET={}\n", shell_word(text_of(node, "client_socket")));
  text += fmt::format(
      "On each node at once, with its number in GOSSAMER_LOCAL_RANK:\n  gossamerctl cluster run{} -- CMD\n", option);
  text += fmt::format("Look at a node, and stop them all:\n  gossamerctl --socket {} status\n",
                      shell_word(text_of(answer.at("nodes").at(0), "control_socket")));
  return text + fmt::format("  gossamerctl cluster stop{}\n", option);
}

}  // namespace gossamer::ctl
