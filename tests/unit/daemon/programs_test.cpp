// gossamerd and gossamerctl as programs: exit status, messages, a daemon's life from start to stop.

#include <signal.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/unit/daemon/program.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using test::config_text;
using test::Place;
using test::Program;

TEST_CASE("gossamerd refuses wrong usage and configuration with status 2") {
  Place place;
  CHECK(place.daemon({"--dance"}).exit_status() == 2);
  CHECK(place.daemon({"--version"}).exit_status() == 0);
  CHECK(place.daemon({"--config", place.config, "--check-config"}).exit_status() == 0);
  test::write_file(place.config, "[gossip]\ncodecs = \"q8\"\n");
  for (const char* option : {"--check-config", "--config"}) {
    Program wrong =
        place.daemon(option == std::string("--config") ? std::vector<std::string>{"--config", place.config}
                                                       : std::vector<std::string>{"--config", place.config, option});
    CHECK(wrong.exit_status() == 2);
    CHECK_THAT(wrong.errors(), Contains("gossamer.toml:2: [gossip] codecs: no such option; did you mean codec?"));
  }
  Program checked = place.ctl({"config", "check", place.config});
  CHECK(checked.exit_status() == 2);
  CHECK_THAT(checked.errors(), Contains("did you mean codec?"));
  Program printed = place.daemon({"--print-config"});
  CHECK(printed.exit_status() == 0);
  CHECK(printed.output() == test::read_file(GOSSAMER_SAMPLE_CONFIG));
}

TEST_CASE("a daemon starts, answers, reloads and stops") {
  Place place;
  Program daemon = place.daemon({"--config", place.config});
  REQUIRE(daemon.says("gossamerd " GOSSAMER_VERSION " runs as node tested"));

  Program status = place.ctl({"status", "--json", "--socket", place.control});
  CHECK(status.exit_status() == 0);
  CHECK(nlohmann::json::parse(status.output()).at("node").at("name") == "tested");
  for (const char* command : {"status", "peers", "jobs"}) {
    Program table = place.ctl({command, "--socket", place.control});
    CHECK(table.exit_status() == 0);
    CHECK_THAT(table.output(), !Contains("\033"));
    CHECK_FALSE(table.output().empty());
  }
  Program top = place.ctl({"top", "--frames", "2", "--interval", "0.1", "--socket", place.control});
  CHECK(top.exit_status() == 0);
  CHECK_THAT(top.output(), Contains("tested") && Contains("no job: no training process") && !Contains("\033"));

  Program second = place.daemon({"--config", place.config});
  CHECK(second.exit_status() == 1);
  CHECK_THAT(second.errors(), Contains("in use by process " + std::to_string(daemon.pid())));

  test::write_file(place.config, config_text(place.folder.path(), "[gossip]\nperiod_ms = 7\nseed = 3\n"));
  daemon.signal(SIGHUP);
  CHECK(daemon.says("reloaded: gossip.period_ms"));
  CHECK(daemon.says("need a restart: gossip.seed"));
  test::write_file(place.config, "[gossip");
  daemon.signal(SIGHUP);
  CHECK(daemon.says("gossamer.toml:1:8: the name of a section stands between [ and ]"));

  daemon.signal(SIGTERM);
  CHECK(daemon.exit_status() == 0);
  CHECK_FALSE(std::filesystem::exists(place.control));
}

TEST_CASE("a daemon killed at any time can be started again") {
  Place place;
  {
    Program killed = place.daemon({"--config", place.config});
    REQUIRE(killed.says("runs as node"));
    killed.signal(SIGKILL);
    CHECK(killed.exit_status() == -1);
  }
  CHECK(std::filesystem::exists(place.control));
  Program again = place.daemon({"--config", place.config});
  CHECK(again.says("runs as node"));
  again.signal(SIGINT);
  CHECK(again.exit_status() == 0);
}

TEST_CASE("gossamerctl says by its status what is wrong") {
  Place place;
  Program alone = place.ctl({"status", "--socket", place.control});
  CHECK(alone.exit_status() == 1);
  CHECK_THAT(alone.errors(), Contains("is gossamerd running?"));
  CHECK(place.ctl({}).exit_status() == 2);
  CHECK(place.ctl({"dance"}).exit_status() == 2);
  CHECK(place.ctl({"status", "--watch", "0"}).exit_status() == 2);
  CHECK(place.ctl({"--version"}).exit_status() == 0);
}

TEST_CASE("every command of the control socket is in the reference, which says who may give it") {
  Place place;
  Program daemon = place.daemon({"--config", place.config});
  REQUIRE(daemon.says("runs as node tested"));
  const gossamer::FileDescriptor socket = test::connect_to(place.control, SOCK_STREAM);
  const std::string dance = "{\"command\": \"dance\"}\n";
  REQUIRE(::send(socket.get(), dance.data(), dance.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(dance.size()));
  char answer[4096];
  const ssize_t got = ::recv(socket.get(), answer, sizeof answer, 0);
  REQUIRE(got > 0);
  const auto names = [](const std::string& text, const std::regex& name) {
    std::set<std::string> found;
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
      CHECK(found.insert(at->str(1)).second);
    return found;
  };
  const std::string error = nlohmann::json::parse(std::string(answer, static_cast<std::size_t>(got))).at("error");
  std::smatch lists;
  REQUIRE(std::regex_match(error, lists, std::regex(".*; there are (.*), and for root and the user .* runs as (.*)")));

  std::string page = test::read_file(GOSSAMER_CTL_PAGE);
  page.erase(0, page.find("## Who may give a command"));
  std::string everyones;
  std::string owners;
  const std::regex row("\\| (`.*`) \\| (everyone|steerers|owners) \\|");
  for (std::sregex_iterator at(page.begin(), page.end(), row), end; at != end; ++at)
    (at->str(2) == "everyone" ? everyones : owners) += at->str(1);
  const std::regex listed("([a-z_]+)");
  CHECK(names(lists[1], listed) == names(everyones, listed));
  CHECK(names(lists[2], listed) == names(owners, listed));
  CHECK(names(lists[2], listed).size() > 5);
}
