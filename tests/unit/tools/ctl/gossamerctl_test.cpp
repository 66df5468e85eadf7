// gossamerctl against the real control server, and its tables.

#include <sys/socket.h>

#include <thread>

#include "daemon/control/control_server.hpp"
#include "daemon/report/status.hpp"
#include "sdk/layout/file_descriptor.hpp"
#include "sdk/layout/socket_path.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"
#include "tools/ctl/commands.hpp"
#include "tools/ctl/control_client.hpp"
#include "tools/ctl/format.hpp"
#include "tools/ctl/tables.hpp"

using namespace gossamer;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

daemon::JobStatus some_job() {
  daemon::JobStatus job;
  job.job = "digits";
  job.state = "running";
  job.codec = "q8";
  job.elements = 25'300'000;
  job.exchanges = 1234;
  job.blocks = 1000;
  job.wide_blocks = 25;
  return job;
}

/// A control server whose loop runs on a thread of its own, as the daemon's does.
struct Daemon {
  explicit Daemon(std::function<json(const json&)> answer) {
    auto opened = daemon::ControlServer::open(
        loop, path, [answer](const json& request, const gossamer::daemon::Caller&) { return answer(request); },
        log.logger);
    REQUIRE(opened);
    server = std::move(*opened);
    thread = std::thread([this] { loop.run(); });
  }
  ~Daemon() {
    loop.stop();
    thread.join();
  }

  daemon::test::TemporaryFolder folder;
  std::string path = (folder.path() / "control.sock").string();
  asio::io_context loop;
  daemon::test::TestLog log;
  std::unique_ptr<daemon::ControlServer> server;
  std::thread thread;
};

}  // namespace

TEST_CASE("gossamerctl takes no seconds that are no number") {
  using Add = void (*)(CLI::App&, ctl::CommandAction&);
  const std::tuple<Add, std::string, std::string> options[] = {
      {ctl::add_top_command, "top --interval ", "1"},     {ctl::add_explain_command, "explain --seconds ", "1"},
      {ctl::add_node_commands, "leave --timeout ", "1"},  {ctl::add_keep_command, "keep digits --wait ", "1"},
      {ctl::add_run_command, "run --backoff ", "1 true"}, {ctl::add_run_command, "run --grace ", "1 true"},
  };
  for (const auto& [add, option, good] : options) {
    ctl::CommandAction chosen;
    CLI::App app;
    add(app, chosen);
    for (const std::string bad : {"nan", "-nan", "NaN", "inf", "-1"})
      CHECK_THROWS_AS(app.parse(option + bad), CLI::ValidationError);
    CHECK_NOTHROW(app.parse(option + good));
  }
  const CLI::Validator seconds = ctl::number_within(0.5, 2);  // main uses this for --watch
  CHECK(seconds("nan") == "Value nan is no number");
  CHECK(seconds("1").empty());
  CHECK(seconds.get_description() == CLI::Range(0.5, 2.0).get_description());
}

TEST_CASE("gossamerctl asks the first socket where somebody answers") {
  Daemon daemon([](const json&) { return gossamer::daemon::jobs_answer({some_job()}); });
  const auto answer = ctl::request({"/nonexistent/control.sock", daemon.path}, {{"command", "jobs"}});
  REQUIRE(answer);
  CHECK(answer->at("jobs").at(0).get<gossamer::daemon::JobStatus>().exchanges == 1234);
}

TEST_CASE("gossamerctl tells no daemon from a daemon's error") {
  const auto none = ctl::request({}, {{"command", "status"}});
  REQUIRE_FALSE(none);
  CHECK(none.error().failure == ctl::Failure::no_daemon);
  CHECK_THAT(none.error().message, Contains("is gossamerd running?"));
  const auto dead = ctl::request({"/nonexistent/control.sock"}, {{"command", "status"}});
  REQUIRE_FALSE(dead);
  CHECK(dead.error().failure == ctl::Failure::no_daemon);
  CHECK_THAT(dead.error().message, Contains("no daemon answers at /nonexistent/control.sock (No such file"));

  Daemon daemon([](const json&) { return json{{"error", "not today"}}; });
  const auto refused = ctl::request({daemon.path}, {{"command", "status"}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().failure == ctl::Failure::bad_answer);
  CHECK_THAT(refused.error().message, Contains("not today"));
}

TEST_CASE("gossamerctl tells the socket of training programs from its own") {
  const daemon::test::TemporaryFolder folder;
  const std::string path = (folder.path() / "client.sock").string();
  const auto address = layout::socket_address(path);
  REQUIRE(address);
  const FileDescriptor programs(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(programs.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0);
  REQUIRE(::listen(programs.get(), 1) == 0);
  const auto answer = ctl::request({path}, {{"command", "status"}});
  REQUIRE_FALSE(answer);
  CHECK_THAT(answer.error().message, Contains("gossamerctl wants the control socket beside it"));
}

TEST_CASE("tables show what the daemon says") {
  daemon::NodeStatus node;
  node.name = "left";
  node.state = "running";
  node.uptime_s = 192;
  node.bytes_sent = 8'500'000;
  node.messages_rejected = 1;
  node.admissions_refused = 2;
  node.handshakes_failed = 3;
  const std::string status = ctl::status_table(daemon::status_answer(node), false);
  CHECK_THAT(status, Contains("1 messages, 2 times a node; of connections, 3 failed their handshake"));
  CHECK_THAT(status, Contains("left") && Contains("3 m 12 s") && Contains("8.50 MB"));
  CHECK_THAT(status, !Contains("near a limit") && !Contains("awaited") && !Contains("GPUs are full"));
  node.limits_near = "clients: 60 of 64";
  node.clients_awaited = 2;
  node.device_overflow_bytes = 8'000'000;
  node.findings.push_back({"drift", "warning", "digits", "", "", "right\x1b[31m drifts", "a faster line", 30});
  const std::string warning = ctl::status_table(daemon::status_answer(node), false);
  CHECK_THAT(warning, Contains("near a limit") && Contains("clients: 60 of 64"));
  CHECK_THAT(warning, Contains("2 clients of the last daemon"));
  CHECK_THAT(warning, Contains("GPUs are full") && Contains("8.00 MB in host memory"));
  CHECK_THAT(warning, Contains("drift ") && Contains("right?[31m drifts") && Contains("-> a faster line"));

  daemon::PeerStatus peer;
  peer.node = "0123456789abcdef0123456789abcdef";
  peer.name = "right\x1b[31m";
  peer.up = true;
  peer.round_trip_ms = 0.25;
  peer.least_round_trip_ms = 0.125;
  peer.goodput_mbit_s = 48.25;
  const std::string peers = ctl::peers_table(daemon::peers_answer({peer}), false);
  CHECK_THAT(peers, Contains("01234567 ") && Contains("right?[31m") && Contains("up") && Contains("0.2 ms"));
  CHECK_THAT(peers, Contains("0.1 ms") && Contains("48.2 Mbit/s"));
  CHECK_THAT(ctl::peers_table(daemon::peers_answer({}), false), Contains("gossamerctl invite"));

  daemon::ClusterMemberStatus linked{
      .node = "0123456789abcdef", .name = "right", .address = "tcp://10.0.0.2:26746", .state = "alive"};
  linked.linked = true;
  linked.heard_s = 0.25;
  linked.incarnation = 1'760'000'000'000'001;
  const daemon::ClusterMemberStatus unheard{
      .node = "fedcba9876543210", .name = {}, .address = {}, .state = "suspected"};
  const std::string members = ctl::members_table(daemon::members_answer({linked, unheard}), false);
  CHECK_THAT(members, Contains("01234567 ") && Contains("alive") && Contains("0.2 s ago") && Contains("up"));
  CHECK_THAT(members, Contains("1760000000000001") && Contains("suspected") && Contains("only dials out"));
  CHECK_THAT(ctl::members_table(daemon::members_answer({}), false), Contains("gossamerctl invite"));

  const std::string jobs = ctl::jobs_table(daemon::jobs_answer({some_job()}), false);
  CHECK_THAT(jobs, Contains("digits") && Contains("25.3 M") && Contains("2.5 %") && !Contains("\x1b"));
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({some_job()}), true), Contains("\x1b[32mrunning\x1b[0m"));
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({}), false), Contains("no training process"));

  daemon::JobStatus shared = some_job();
  shared.processes = {
      {.pid = 41, .state = "running", .clock = 7, .steps = 3, .published_s = 2, .buffers = "GPU-1", .parts = 4},
      {.pid = 42, .state = "joining", .clock = 0, .steps = 0, .published_s = 0, .buffers = "host"}};
  const json clients = ctl::clients_of(daemon::jobs_answer({shared}));
  REQUIRE(clients.at("clients").size() == 2);
  CHECK(clients["clients"][1] == json{{"job", shared.job},
                                      {"pid", 42},
                                      {"state", "joining"},
                                      {"clock", 0},
                                      {"steps", 0},
                                      {"published_s", 0.0},
                                      {"buffers", "host"},
                                      {"keeps", false},
                                      {"parts", 1}});
  daemon::JobStatus kept = some_job();
  kept.processes = {{.pid = 43, .state = "running", .keeps = true}};
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({kept}), false), Contains("kept") && !Contains("running"));
  CHECK_THAT(ctl::clients_table(clients, false),
             Contains("digits") && Contains(" 41 and 3 more ") && Contains("2.0 s ago"));
  CHECK_THAT(ctl::clients_table(clients, false), Contains("GPU-1") && Contains("host"));
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({shared}), false), Contains(" 42  joining"));
  CHECK_THAT(ctl::clients_table(ctl::clients_of(daemon::jobs_answer({})), false), Contains("no training process"));
}

TEST_CASE("tables of keys and denials, with nothing that steers a terminal") {
  const json keys = {
      {"keys",
       {{{"fingerprint", "0123456789abcdef"},
         {"made_at", "2026-03-01 12:00 UTC"},
         {"listened_with", true},
         {"signed", true},
         {"holders", 2}},
        {{"fingerprint", "fedcba9876543210"}, {"made_at", ""}, {"listened_with", false}, {"holders", 3}}}},
      {"neighbours", 3}};
  CHECK_THAT(ctl::keys_table(keys, false), Contains("0123456789abcdef  2026-03-01 12:00 UTC  yes     listened with") &&
                                               Contains("2 of 3") && Contains("not known") && Contains("3 of 3"));
  const json denials = {{"denials",
                         {{{"node", "ab"}, {"denied", true}, {"decided_at", "today"}, {"reason", "lost\x1b[31m"}},
                          {{"node", "cd"}, {"denied", false}, {"decided_at", "today"}, {"reason", ""}}}}};
  CHECK_THAT(ctl::denials_table(denials, false), Contains("lost?[31m") && Contains("denied") && Contains("allowed"));
  CHECK_THAT(ctl::denials_table({{"denials", json::array()}}, false), Contains("no node was ever denied"));
}

TEST_CASE("answers of another daemon's version are shown or refused, never guessed") {
  CHECK_THAT(ctl::jobs_table(json{{"jobs", {{{"job", "a"}}}}}, false), Contains("a") && Contains("-"));
  CHECK_THROWS_AS(ctl::jobs_table(json{{"tasks", {}}}, false), json::exception);
  CHECK_THROWS_AS(ctl::jobs_table(json{{"jobs", {{{"job", 7}}}}}, false), json::exception);
}

TEST_CASE("numbers are short and columns line up") {
  CHECK(ctl::bytes_text(0) == "0 B");
  CHECK(ctl::bytes_text(999) == "999 B");
  CHECK(ctl::bytes_text(1000) == "1.00 kB");
  CHECK(ctl::bytes_text(12'345) == "12.3 kB");
  CHECK(ctl::bytes_text(999'600) == "1.00 MB");
  CHECK(ctl::bytes_text(123.4e9) == "123 GB");
  CHECK(ctl::count_text(99'999) == "99999");
  CHECK(ctl::count_text(100'000) == "100 k");
  CHECK(ctl::duration_text(0.25) == "0.2 s");
  CHECK(ctl::duration_text(59.4) == "59 s");
  CHECK(ctl::duration_text(61) == "1 m 01 s");
  CHECK(ctl::duration_text(7260) == "2 h 01 m");
  CHECK(ctl::duration_text(200'000) == "2 d 07 h");
  const ctl::Table table{{"A", "B"}, {{{"größe"}, {"1", true}}, {{"x"}, {"100", true}}}, ""};
  CHECK(table.render(false) == "A        B\ngröße    1\nx      100\n");
}

TEST_CASE("the jobs table shows how far a pull, or a handing over, is") {
  daemon::JobStatus job = some_job();
  job.state = "joining";
  job.fragments = 40;
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({job}), false), Contains("joining"));
  job.fragments_pulled = 12;
  job.donors = 3;
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({job}), false), Contains("pulling 12 of 40 fragments, from 3 nodes"));
  job.donors = 1;
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({job}), false), Contains("from 1 node "));
  job.state = "draining";
  job.fragments_handed_over = 39;
  CHECK_THAT(ctl::jobs_table(daemon::jobs_answer({job}), false), Contains("handed over 39 of 40 fragments"));
}
