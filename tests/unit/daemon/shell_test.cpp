// The shell around a core that only remembers: commands, reload, stop.

#include "daemon/shell.hpp"

#include <asio/post.hpp>
#include <csignal>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using nlohmann::json;

namespace {

Config usual_config() {
  Config config;
  config.metrics.listen = "127.0.0.1:0";
  return config;
}

struct RememberingCore : Core {
  std::expected<void, AttachRefusal> attach(std::shared_ptr<ClientSession> session) override {
    sessions.push_back(std::move(session));
    return {};
  }
  void woken(ClientSession&) override {}
  void detached(ClientSession&) override { sessions.pop_back(); }
  [[nodiscard]] NodeId id() const override { return {}; }
  [[nodiscard]] NodeStatus node_status() const override {
    NodeStatus status;
    status.name = "tested";
    return status;
  }
  [[nodiscard]] std::vector<PeerStatus> peer_statuses() const override { return std::vector<PeerStatus>(2); }
  [[nodiscard]] std::vector<ClusterMemberStatus> member_statuses() const override {
    return std::vector<ClusterMemberStatus>(4);
  }
  [[nodiscard]] std::vector<JobStatus> job_statuses() const override { return std::vector<JobStatus>(3); }
  [[nodiscard]] std::vector<SummaryStatus> summary_statuses() const override { return std::vector<SummaryStatus>(5); }
  void reconfigure(const Config& config) override { reconfigured.push_back(config); }
  void set_drained(bool drain) override { is_drained = drain; }
  [[nodiscard]] bool drained() const override { return is_drained; }
  void begin_leave(std::chrono::microseconds patience, std::function<void()> then) override {
    leave_patience = patience;
    stopped = std::move(then);
  }
  void begin_stop(std::function<void()> then) override { stopped = std::move(then); }

  std::vector<std::shared_ptr<ClientSession>> sessions;
  std::vector<Config> reconfigured;
  bool is_drained = false;
  std::optional<std::chrono::microseconds> leave_patience;
  std::function<void()> stopped;
};

struct Running {
  Running() {
    auto opened = Shell::open(
        loop, usual_config(), [this] { return next; }, folder.path(), core, log);
    REQUIRE(opened);
    shell = std::move(*opened);
  }
  /// Answers a request that root makes.
  [[nodiscard]] json ask(const json& request) const { return shell->answer(request, {.user = 0}); }

  test::TemporaryFolder folder;
  asio::io_context loop;
  std::filesystem::path log_file = folder.path() / "log";
  Log log = *Log::open({LogLevel::info, log_file});
  RememberingCore core;
  std::expected<Config, std::string> next = usual_config();
  std::unique_ptr<Shell> shell;
};

}  // namespace

TEST_CASE("commands are answered from the core, and unknown ones named") {
  Running daemon;
  const json status = daemon.ask({{"command", "status"}});
  CHECK(status.at("node").at("name") == "tested");
  CHECK(status.at("node").at("state") == "running");
  CHECK(status.at("node").at("version") == GOSSAMER_VERSION);
  CHECK(status.at("node").at("cpu_s") > 0);
  CHECK(daemon.ask({{"command", "peers"}}).at("peers").size() == 2);
  CHECK(daemon.ask({{"command", "members"}}).at("members").size() == 4);
  CHECK(daemon.ask({{"command", "jobs"}}).at("jobs").size() == 3);
  CHECK_THAT(daemon.ask({{"command", "dance"}}).at("error").get<std::string>(), Contains("dance"));
}

TEST_CASE("the status page says what the commands do, and metrics the same") {
  Running daemon;
  const std::string url = daemon.ask({{"command", "status"}}).at("node").at("page");
  CHECK_THAT(url, StartsWith("http://127.0.0.1:"));
  const auto page = Page::open(daemon.loop, "[::1]:0",
                               {.observed =
                                    [&] {
                                      return Observed{daemon.core.node_status(), daemon.core.peer_statuses(), {}};
                                    },
                                .members = [&] { return daemon.core.member_statuses(); },
                                .cluster = [&] { return daemon.core.summary_statuses(); },
                                .log =
                                    [&] {
                                      return std::vector<std::string>{"short", std::string(10'000, 'x'), "\xff"};
                                    }},
                               daemon.log.logger());
  REQUIRE(page);
  CHECK_THAT((*page)->url(), StartsWith("http://[::1]:"));
  const HttpReply reply = (*page)->answer("/status.json");
  REQUIRE(reply.status == 200);
  const json shown = json::parse(*reply.body);
  CHECK(shown.at("node").at("name") == "tested");
  CHECK(shown.at("peers").size() == 2);
  CHECK(shown.at("members").size() == 4);
  CHECK(shown.at("cluster").size() == 5);
  CHECK(shown.at("log").at(0) == "short");
  CHECK(shown.at("log").at(1).get<std::string>().size() < 2 * max_page_log_line_bytes);
  CHECK((*page)->answer("/status.json").body == reply.body);  // asked again at once, so it is not made again
  CHECK_THAT(*(*page)->answer("/metrics").body, Contains("gossamer_build_info"));
  const HttpReply index = (*page)->answer("/");
  REQUIRE(index.status == 200);
  CHECK_THAT(index.type, StartsWith("text/html"));
  CHECK_THAT(*index.body, Contains("page.js") && Contains("page.css"));
  CHECK_THAT(*(*page)->answer("/page.js").body, Contains("status.json"));
  CHECK_THAT((*page)->answer("/page.css").type, StartsWith("text/css"));
  CHECK((*page)->answer("/etc/passwd").status == 404);
}

TEST_CASE("a daemon whose page has no address goes on without it, and says so") {
  Running daemon;
  const test::TemporaryFolder folder;
  Config config = usual_config();
  const std::string url = daemon.ask({{"command", "status"}}).at("node").at("page");
  config.metrics.listen = url.substr(7, url.size() - 8);
  RememberingCore core;
  const auto second = Shell::open(
      daemon.loop, config, [&] { return config; }, folder.path(), core, daemon.log);
  REQUIRE(second);
  CHECK((*second)->answer({{"command", "status"}}, {.user = 0}).at("node").at("page") == "");
  CHECK_THAT(test::read_file(daemon.log_file), Contains("no status page and no metrics: " + config.metrics.listen));
}

TEST_CASE("a second daemon at the same sockets is refused") {
  Running daemon;
  asio::io_context loop;
  RememberingCore core;
  const auto second = Shell::open(
      loop, usual_config(), [] { return usual_config(); }, daemon.folder.path(), core, daemon.log);
  REQUIRE_FALSE(second);
  CHECK_THAT(second.error(), Contains("another program answers"));
}

TEST_CASE("a reload takes over what can change, and survives a wrong file") {
  Running daemon;
  daemon.next->gossip.period_ms = 77;
  daemon.next->limits.clients = 1;
  daemon.shell->reload_config();
  REQUIRE(daemon.core.reconfigured.size() == 1);
  CHECK(daemon.core.reconfigured[0].gossip.period_ms == 77);
  CHECK(daemon.shell->config().limits.clients == 64);
  CHECK_THAT(test::read_file(daemon.log_file), Contains("reloaded: gossip.period_ms") && Contains("limits.clients"));
  daemon.next = std::unexpected("f:1: broken");
  daemon.shell->reload_config();
  CHECK(daemon.core.reconfigured.size() == 1);
  CHECK(daemon.shell->config().gossip.period_ms == 77);
  CHECK_THAT(test::read_file(daemon.log_file), Contains("f:1: broken"));
}

TEST_CASE("a signal stops the daemon once the core has; clients are told") {
  Running daemon;
  test::TestMemory memory;
  memory.seal();
  const FileDescriptor wake(::eventfd(0, EFD_CLOEXEC));
  const FileDescriptor client =
      test::connect_to((daemon.folder.path() / layout::client_socket_name).string(), SOCK_SEQPACKET);
  const layout::AttachRequest request = test::attach_request(memory.plan.total_bytes);
  test::send_datagram(client.get(), &request, sizeof request, {memory.fd.get(), wake.get()});

  bool still_attached_when_stopped = false;
  asio::steady_timer poll(daemon.loop);
  std::function<void()> drive = [&] {
    if (daemon.core.sessions.size() == 1 && !daemon.core.stopped) ::raise(SIGTERM);
    if (daemon.core.stopped) {
      still_attached_when_stopped = daemon.core.sessions.size() == 1;
      return daemon.core.stopped();
    }
    poll.expires_after(std::chrono::milliseconds(5));
    poll.async_wait([&](std::error_code error) {
      if (!error) drive();
    });
  };
  asio::post(daemon.loop, drive);
  daemon.shell->run();
  CHECK(still_attached_when_stopped);
  daemon.shell = nullptr;
  CHECK(daemon.core.sessions.size() == 1);  // the daemon has gone, and the client is not counted as gone
  layout::AttachReply reply{};
  CHECK(::recv(client.get(), &reply, sizeof reply, 0) == sizeof reply);
  CHECK(::recv(client.get(), &reply, sizeof reply, 0) == 0);
}

TEST_CASE("a second signal stops a daemon whose core has not finished") {
  Running daemon;
  asio::post(daemon.loop, [&] {
    daemon.shell->stop();
    CHECK(daemon.ask({{"command", "status"}}).at("node").at("state") == "stopping");
    ::raise(SIGINT);
  });
  daemon.shell->run();
  CHECK(daemon.core.stopped);
}

TEST_CASE("drain and leave reach the core, and the answer comes before the end") {
  Running daemon;
  const auto state = [&] { return daemon.ask({{"command", "status"}}).at("node").at("state"); };
  CHECK(daemon.ask({{"command", "drain"}}).at("drained") == true);
  CHECK(daemon.core.is_drained);
  CHECK(state() == "drained");
  CHECK(daemon.ask({{"command", "drain"}, {"off", true}}).at("drained") == false);
  CHECK(state() == "running");
  for (const json& wrong : {json(-1), json(1e9)})
    CHECK(daemon.ask({{"command", "leave"}, {"timeout_s", wrong}}).contains("error"));
  CHECK(daemon.ask({{"command", "leave"}, {"timeout_s", 2.5}}).at("leaving") == true);
  CHECK_FALSE(daemon.core.leave_patience);
  asio::post(daemon.loop, [&] {
    CHECK(daemon.core.leave_patience == std::chrono::microseconds(2'500'000));
    CHECK(state() == "leaving");
    daemon.core.stopped();
  });
  daemon.shell->run();
}

TEST_CASE("the folder for sockets is the configured one, made if need be") {
  const test::TemporaryFolder folder;
  Config config;
  config.node.socket_dir = folder.path() / "a" / "b";
  CHECK(socket_folder(config).value() == config.node.socket_dir);
  CHECK(std::filesystem::is_directory(config.node.socket_dir));
  config.node.socket_dir = "/proc/gossamer";
  CHECK_THAT(socket_folder(config).error(), Contains("[node] socket_dir"));
}
