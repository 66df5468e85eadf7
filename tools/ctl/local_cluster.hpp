// A local cluster: several nodes on one machine, which `gossamerctl cluster` starts and stops. This file decides where
// its files are, what is written there, and what is shown of it.
//
// Pure: paths, ports and answers come in, texts go out. local_cluster_tool.cpp does what is to be done, and
// local_daemon.hpp has the daemons.
//
// FOLDER/cluster.json names the nodes' ports, and makes FOLDER the folder of a local cluster. Each node has
// FOLDER/NAME with its configuration, log, sockets and state. Everything is readable for its owner only.

#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer::ctl {

inline constexpr std::size_t usual_local_nodes = 3;
/// All daemons of a local cluster share one machine. Up to this many, each is also linked with every other.
inline constexpr std::size_t max_local_nodes = 32;

/// The files of one node.
struct LocalNode {
  std::string name;
  std::filesystem::path folder;
  std::filesystem::path configuration;
  std::filesystem::path log;
  std::filesystem::path state;
  std::filesystem::path cluster_key;
  std::filesystem::path client_socket;
  std::filesystem::path control_socket;
  std::filesystem::path average_socket;
};

struct LocalCluster {
  std::filesystem::path folder;      ///< absolute
  std::vector<std::uint16_t> ports;  ///< on loopback, one for each node; 0: none is chosen yet

  [[nodiscard]] std::filesystem::path record() const { return folder / "cluster.json"; }
  /// The file that is locked while nodes are started or stopped.
  [[nodiscard]] std::filesystem::path lock() const { return folder / "lock"; }
  [[nodiscard]] LocalNode node(std::size_t index) const;
  [[nodiscard]] std::string address(std::size_t index) const;
};

/// The usual folder of a local cluster, below the one that the environment names for the state of programs. An error if
/// the environment names none.
[[nodiscard]] std::expected<std::filesystem::path, std::string> usual_local_folder(const char* state_home,
                                                                                   const char* home);
/// What makes a folder unfit for the sockets and configurations below it; empty: nothing.
[[nodiscard]] std::string folder_problem(const std::filesystem::path& folder);

/// Writes and parses the text of cluster.json.
[[nodiscard]] std::string record_text(const std::vector<std::uint16_t>& ports);
[[nodiscard]] std::expected<std::vector<std::uint16_t>, std::string> parse_record(std::string_view text);

/// A node's configuration file. The node dials all the others.
[[nodiscard]] std::string configuration_text(const LocalCluster& cluster, std::size_t index);

/// `text` as one word of a shell.
[[nodiscard]] std::string shell_word(const std::string& text);

/// Texts for people. `answer` has the members that gossamerctl.schema.json names for the commands. `option`: what must
/// be added to the commands in the text so that they find this folder.
[[nodiscard]] std::string local_cluster_table(const nlohmann::json& answer, bool colour);
[[nodiscard]] std::string how_to_use(const nlohmann::json& answer, const std::string& option);
/// Whether all nodes run, and each has a link to every other.
[[nodiscard]] bool all_linked(const nlohmann::json& answer);

}  // namespace gossamer::ctl
