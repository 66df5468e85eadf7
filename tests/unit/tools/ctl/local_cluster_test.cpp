// The decisions of `gossamerctl cluster`: folders, files and texts. tests/system/local_cluster_test.py tests it with
// daemons.

#include "tools/ctl/local_cluster.hpp"

#include "daemon/config/config.hpp"
#include "tests/unit/catch.hpp"
#include "tools/ctl/local_daemon.hpp"

using namespace gossamer;
using namespace gossamer::ctl;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

json answer_of(const std::vector<std::pair<bool, int>>& nodes) {
  json listed = json::array();
  for (const auto& [running, neighbours] : nodes)
    listed.push_back({{"name", "node-" + std::to_string(listed.size() + 1)},
                      {"running", running},
                      {"pid", 7},
                      {"neighbours", neighbours},
                      {"address", "tcp://127.0.0.1:5"},
                      {"page", "http://127.0.0.1:6/"},
                      {"client_socket", "/a b/client.sock"},
                      {"control_socket", "/a b/control.sock"}});
  return {{"folder", "/a b"}, {"nodes", listed}};
}

}  // namespace

TEST_CASE("a local cluster is where a user's state is") {
  CHECK(usual_local_folder("/s", "/h") == "/s/gossamer/cluster");
  CHECK(usual_local_folder(nullptr, "/h") == "/h/.local/state/gossamer/cluster");
  CHECK(usual_local_folder("relative", "/h") == "/h/.local/state/gossamer/cluster");
  REQUIRE_FALSE(usual_local_folder("", nullptr));
  CHECK_THAT(usual_local_folder("", "").error(), Contains("--folder"));
}

TEST_CASE("a folder has room for the sockets of the last node, to the byte") {
  const std::size_t most = 107 - std::string("/node-32/control.sock").size();
  CHECK(folder_problem("/" + std::string(most - 1, 'f')).empty());
  const std::string problem = folder_problem("/" + std::string(most, 'f'));
  CHECK_THAT(problem, Contains("has 87 bytes") && Contains("at most 86") && Contains("--folder"));
  CHECK_THAT(folder_problem("/a\nb"), Contains("characters"));
  CHECK_THAT(folder_problem("/\xff"), Contains("characters"));
}

TEST_CASE("the record of a local cluster is read as it was written") {
  const std::vector<std::uint16_t> ports{1, 65535};
  CHECK(parse_record(record_text(ports)) == ports);
  for (const char* text :
       {"", "nonsense", "[]", "{}", R"({"version":1})", R"({"version":1,"ports":3})", R"({"version":1,"ports":[]})",
        R"({"version":1,"ports":[65536]})", R"({"version":1,"ports":[-1]})", R"({"version":1,"ports":["1"]})",
        R"({"version":2,"ports":[1]})"}) {
    INFO(text);
    CHECK_FALSE(parse_record(text));
  }
  CHECK_FALSE(parse_record(record_text(std::vector<std::uint16_t>(max_local_nodes + 1, 5))));
}

TEST_CASE("a node's configuration is one that gossamerd takes, and names the others") {
  const LocalCluster cluster{.folder = "/tmp/a \"b\" \\c", .ports = {101, 102, 103}};
  const auto config = daemon::parse(configuration_text(cluster, 1), "f");
  INFO((config ? "" : config.error()));
  REQUIRE(config);
  CHECK(config->node.name == "node-2");
  CHECK(config->node.state_dir == cluster.folder / "node-2" / "state");
  CHECK(config->node.socket_dir == cluster.node(1).control_socket.parent_path());
  CHECK(config->overlay.listen == "tcp://127.0.0.1:102");
  CHECK(config->overlay.peers == std::vector<std::string>{"tcp://127.0.0.1:101", "tcp://127.0.0.1:103"});
  CHECK(config->overlay.cluster_key_file == cluster.node(1).cluster_key);
  const LocalCluster alone{.folder = "/f", .ports = {101}};
  CHECK(daemon::parse(configuration_text(alone, 0), "f").value().overlay.peers.empty());
}

TEST_CASE("a path is one word of a shell") {
  CHECK(shell_word("/home/u/.local/x-1") == "/home/u/.local/x-1");
  CHECK(shell_word("/a b") == "'/a b'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("$(reboot)") == "'$(reboot)'");
  CHECK(shell_word("") == "''");
}

TEST_CASE("a local cluster is whole when all nodes run and are linked") {
  CHECK(all_linked(answer_of({{true, 2}, {true, 2}, {true, 2}})));
  CHECK(all_linked(answer_of({{true, 0}})));
  CHECK_FALSE(all_linked(answer_of({{true, 2}, {true, 1}, {true, 2}})));
  CHECK_FALSE(all_linked(answer_of({{true, 1}, {false, 0}})));
  CHECK_THAT(local_cluster_table(answer_of({{true, 1}, {false, 0}}), false),
             Contains("not running") && Contains("http://127.0.0.1:6/"));
  const std::string use = how_to_use(answer_of({{true, 0}}), " --folder '/a b'");
  CHECK_THAT(use, Contains("export GOSSAMER_SOCKET='/a b/client.sock'") &&
                      Contains("gossamerctl --socket '/a b/control.sock' status") &&
                      Contains("gossamerctl cluster stop --folder '/a b'"));
}

TEST_CASE("where nobody listens there is no daemon, whatever file is there") {
  CHECK_FALSE(LocalDaemon::at("/nowhere/control.sock"));
  CHECK_FALSE(LocalDaemon::at("/dev/null"));
  CHECK_FALSE(LocalDaemon::at(std::string(200, 'x')));
}
