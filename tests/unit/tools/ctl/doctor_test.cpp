// What gossamerctl doctor makes of facts: each fault alone is found, named and graded, and a sound node has none.

#include "tools/ctl/doctor.hpp"

#include "daemon/report/self_report.hpp"
#include "daemon/report/status.hpp"
#include "peer/links/greeting.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer;
using namespace gossamer::ctl;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

constexpr std::uint64_t gibibyte = 1u << 30;

MachineFacts sound_machine() {
  return {.clock = MachineFacts::Clock{.synchronised = true, .error_s = 0.001},
          .shared_memory_bytes = gibibyte,
          .shared_memory_free_bytes = gibibyte,
          .memory_available_bytes = gibibyte,
          .somaxconn = 4096,
          .has_bbr = true,
          .tcp_rmem_bytes = 6 << 20,
          .tcp_wmem_bytes = 4 << 20,
          .rmem_max_bytes = 212'992,
          .wmem_max_bytes = 212'992,
          .gpu_driver = {}};
}

DaemonFacts sound_daemon() {
  daemon::NodeStatus node;
  node.address = "tcp://0.0.0.0:26746";
  node.state = "running";
  daemon::PeerStatus peer;
  peer.address = "tcp://other:26746";
  peer.up = true;
  daemon::ClusterMemberStatus member;
  member.state = "alive";
  return {.process = {{"open_files", 30},
                      {"max_open_files", 65'536},
                      {"max_locked_bytes", nullptr},
                      {"state_dir", "/s"},
                      {"state_mode", 0755},
                      {"state_free_bytes", gibibyte},
                      {"advertise", ""},
                      {"peers", {"tcp://other:26746"}},
                      {"keys", {{{"name", "node key"}, {"path", "/s/node.key"}, {"present", true}, {"mode", 0600}}}}},
          .node = daemon::status_answer(node).at("node"),
          .peers = daemon::peers_answer({peer}).at("peers"),
          .members = daemon::members_answer({member}).at("members"),
          .port_answers = true};
}

/// The finding that is not ok; there must be just one.
Finding only(const std::vector<Finding>& findings) {
  std::vector<Finding> bad;
  for (const Finding& finding : findings) {
    INFO(finding.topic << ": " << finding.text);
    CHECK(finding.advice.empty() == (finding.grade == Grade::ok));
    if (finding.grade != Grade::ok) bad.push_back(finding);
  }
  REQUIRE(bad.size() == 1);
  return bad[0];
}
template <class Change>
Finding machine_with(Change change) {
  MachineFacts facts = sound_machine();
  change(facts);
  return only(examine_machine(facts));
}
template <class Change>
Finding daemon_with(Change change) {
  DaemonFacts facts = sound_daemon();
  change(facts);
  return only(examine_daemon(facts));
}

}  // namespace

TEST_CASE("a sound node has nothing to complain of") {
  CHECK(worst(examine_machine(sound_machine())) == Grade::ok);
  CHECK(worst(examine_daemon(sound_daemon())) == Grade::ok);
  CHECK(worst(examine_machine({})) == Grade::ok);  // an unknown value is no fault
}

TEST_CASE("each fault of the machine is found") {
  CHECK(machine_with([](auto& m) { m.clock->synchronised = false; }).topic == "clock");
  CHECK(machine_with([](auto& m) { m.shared_memory_free_bytes = 1000; }).topic == "shared memory");
  CHECK(machine_with([](auto& m) { m.memory_available_bytes = 1000; }).topic == "memory");
  CHECK_THAT(machine_with([](auto& m) { m.somaxconn = 8; }).advice, Contains("somaxconn=128"));
  CHECK_THAT(machine_with([](auto& m) { m.has_bbr = false; }).advice, Contains("modprobe tcp_bbr"));
  CHECK_THAT(machine_with([](auto& m) { m.tcp_rmem_bytes = 4096; }).text, Contains("tcp_rmem"));
  CHECK_THAT(machine_with([](auto& m) { m.tcp_wmem_bytes = 4096; }).text, Contains("tcp_wmem"));
  CHECK_THAT(machine_with([](auto& m) { m.gpus = 2; }).text, Contains("libcuda"));
  CHECK(machine_with([](auto& m) { m.gpu_driver = "550.1"; }).topic == "GPU");
}

TEST_CASE("each fault of the daemon is found, and graded") {
  const auto key = [](unsigned mode) {
    return daemon_with([mode](DaemonFacts& d) { d.process["keys"][0]["mode"] = mode; });
  };
  CHECK(key(0640).grade == Grade::problem);
  CHECK_THAT(key(0604).advice, Contains("chmod 600 /s/node.key"));
  CHECK(daemon_with([](auto& d) { d.process["keys"][0]["present"] = false; }).grade == Grade::problem);
  CHECK(daemon_with([](auto& d) { d.process["keys"][0]["own"] = false; }).grade == Grade::problem);
  CHECK(daemon_with([](auto& d) { d.port_answers = false; }).topic == "port");
  CHECK_THAT(daemon_with([](auto& d) { d.node["address"] = "tcp://127.0.0.1:26746"; }).advice, Contains("listen"));
  CHECK(daemon_with([](auto& d) { d.node["state"] = "drained"; }).grade == Grade::warning);
  CHECK(daemon_with([](auto& d) { d.node["health"] = 2; }).topic == "members");
  CHECK(daemon_with([](auto& d) { d.members[0]["state"] = "suspected"; }).topic == "members");
  CHECK(daemon_with([](auto& d) { d.process["open_files"] = 65'000; }).grade == Grade::problem);
  CHECK(daemon_with([](auto& d) { d.process["max_open_files"] = 1024; }).grade == Grade::warning);
  CHECK(daemon_with([](auto& d) { d.process["max_locked_bytes"] = 65'536; }).grade == Grade::warning);
  CHECK(daemon_with([](auto& d) { d.process["state_free_bytes"] = 1'000'000; }).grade == Grade::problem);
  CHECK(daemon_with([](auto& d) { d.process["state_free_bytes"] = 100'000'000; }).grade == Grade::warning);
  CHECK_THAT(daemon_with([](auto& d) { d.process["state_mode"] = 0777; }).advice, Contains("chmod 700"));
  const daemon::FindingStatus unsaved{.rule = "state", .grade = "problem", .text = "not saved", .advice = "make room"};
  CHECK(daemon_with([&](auto& d) { d.node["findings"] = {unsaved}; }).topic == "state");
  DaemonFacts certified = sound_daemon();
  certified.node["certificate_ends_us"] = std::uint64_t{1'798'761'600} * 1'000'000;
  CHECK(std::ranges::count(examine_daemon(certified), "certificate", &Finding::topic) == 1);
  const daemon::FindingStatus ended{.rule = "certificate", .grade = "problem", .text = "ended", .advice = "renew it"};
  certified.node["findings"] = {ended};
  CHECK(only(examine_daemon(certified)).topic == "certificate");
  CHECK(std::ranges::count(examine_daemon(certified), "certificate", &Finding::topic) == 1);
  const auto links_note = [](const char* note) {
    return [note](DaemonFacts& d) {
      d.peers.push_back(d.peers[0]);
      d.peers[0]["note"] = note;
      d.peers[0]["up"] = false;
      d.process["peers"] = json::array();
    };
  };
  CHECK_THAT(daemon_with(links_note("its certificate has ended")).advice, Contains("approve"));
  CHECK_THAT(daemon_with(links_note("put out: this node is denied")).advice, Contains("this node's id"));
  CHECK_THAT(daemon_with(links_note("the node at tcp://x is denied here")).advice, Contains("its id"));
  CHECK_THAT(
      daemon_with(links_note("turns us away: another daemon with this node's key, started later, is here")).advice,
      Contains("copied"));
  CHECK_THAT(daemon_with(links_note("no answer")).advice, Contains("firewall"));
  DaemonFacts cut_off = sound_daemon();
  cut_off.process["peers"] = json::array();
  for (json& peer : cut_off.peers)
    peer["up"] = false;
  CHECK(only(examine_daemon(cut_off)).grade == Grade::problem);
  const auto with_gpu = [](bool wanted, bool present) {
    return [=](DaemonFacts& d) {
      d.gpus = 1;
      d.process["gpu_plugin"] = {{"wanted", wanted}, {"path", "/p/plugin.so"}, {"present", present}};
    };
  };
  CHECK_THAT(daemon_with(with_gpu(true, false)).text, Contains("/p/plugin.so is not there"));
  CHECK_THAT(daemon_with(with_gpu(true, false)).advice, Contains("gossamer-cuda"));
  for (const bool wanted : {true, false}) {
    DaemonFacts sound = sound_daemon();
    with_gpu(wanted, wanted)(sound);
    CHECK(worst(examine_daemon(sound)) == Grade::ok);
  }
  CHECK_THAT(daemon_with([](auto& d) { d.peers = json::array(); }).text, Contains("none of 1 configured"));
  const auto unlinked = [](DaemonFacts& d) {
    d.peers.push_back({{"address", "tcp://third:1"}, {"up", false}, {"note", "another cluster key"}});
  };
  CHECK_THAT(daemon_with(unlinked).text, Contains("tcp://third:1") && Contains("another cluster key"));
  const auto of_serf = [](DaemonFacts& d) {
    d.peers.push_back({{"address", "tcp://third:7946"},
                       {"up", false},
                       {"note", peer::not_a_node({.speaker = peer::Greeting::Speaker::silent}, {"third", 7946})}});
  };
  CHECK_THAT(daemon_with(of_serf).advice, Contains("[overlay] peers") && Contains("end that program"));
}

TEST_CASE("links show who can be reached from where") {
  const auto text_of = [](const DaemonFacts& facts) {
    for (const Finding& finding : examine_daemon(facts)) {
      if (finding.topic == "links") return finding.text;
    }
    return std::string();
  };
  DaemonFacts facts = sound_daemon();
  CHECK_THAT(text_of(facts), Contains("0 dialled from here, 1 by the other end"));
  facts.peers[0]["dialled_by_us"] = true;
  CHECK_THAT(text_of(facts), Contains("1 dialled from here, 0 by the other end") && Contains("not shown"));
  facts.peers = json::array();
  facts.process["peers"] = json::array();
  CHECK(worst(examine_daemon(facts)) == Grade::ok);  // a single node
}

TEST_CASE("findings are shown as text, and as JSON for scripts") {
  const std::vector<Finding> findings{{Grade::ok, "port", "listens", ""},
                                      {Grade::problem, "keys", "lost", "find them"}};
  CHECK(worst(findings) == Grade::problem);
  CHECK(as_json(findings).at("worst") == "problem");
  CHECK(as_json(findings).at("findings").at(1).at("advice") == "find them");
  CHECK_THAT(as_text(findings, false), Contains("problem") && Contains("-> find them") && Contains("listens"));
}

TEST_CASE("the daemon reports its own limits and keys") {
  const daemon::test::TemporaryFolder folder;
  daemon::Config config;
  config.node.state_dir = folder.path();
  config.overlay.cluster_key_file = folder.path() / "cluster.key";
  std::ofstream(config.overlay.cluster_key_file) << "secret";
  std::filesystem::permissions(config.overlay.cluster_key_file, std::filesystem::perms(0640));
  const json process = daemon::self_report(config).at("process");
  CHECK(process.at("open_files") > 2);
  CHECK(process.at("state_free_bytes") > 0);
  CHECK(process.at("keys").at(0).at("present") == false);
  CHECK(process.at("keys").at(1).at("mode") == 0640);
  CHECK(process.at("keys").at(1).at("own") == true);
}
