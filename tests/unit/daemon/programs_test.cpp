// gossamerd and gossamerctl as programs: exit status, messages, a daemon's life from start to stop.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

extern char** environ;

using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using namespace std::chrono_literals;

namespace {

/// A program under way, its output going to files. Ended with the object.
class Program {
 public:
  Program(const test::TemporaryFolder& folder, const std::string& file, std::vector<std::string> arguments) {
    static int count = 0;
    output_file_ = folder.path() / ("output" + std::to_string(++count));
    error_file_ = folder.path() / ("error" + std::to_string(count));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_file_.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, error_file_.c_str(), O_WRONLY | O_CREAT, 0600);
    arguments.insert(arguments.begin(), file);
    std::vector<char*> pointers;
    for (std::string& argument : arguments)
      pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    REQUIRE(::posix_spawn(&pid_, file.c_str(), &actions, nullptr, pointers.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }
  [[nodiscard]] std::string output() const { return test::read_file(output_file_); }
  [[nodiscard]] std::string errors() const { return test::read_file(error_file_); }
  [[nodiscard]] pid_t pid() const { return pid_; }

  /// Waits for its end; -1 if it did not end by itself.
  int exit_status() {
    int status = 0;
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (std::chrono::steady_clock::now() < end) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      std::this_thread::sleep_for(5ms);
    }
    return -1;
  }
  /// Waits until its log says so.
  [[nodiscard]] bool says(const std::string& text) const {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (errors().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(5ms);
    }
    return true;
  }

 private:
  pid_t pid_ = -1;
  std::filesystem::path output_file_;
  std::filesystem::path error_file_;
};

std::string config_text(const std::filesystem::path& folder, const std::string& more = "") {
  return "[metrics]\nlisten = \"\"\n[node]\nname = \"tested\"\nstate_dir = \"" + (folder / "state").string() +
         "\"\nsocket_dir = \"" + (folder / "sockets").string() +
         "\"\nworkers = 1\n[overlay]\nlisten = \"tcp://127.0.0.1:0\"\n" + more;
}

struct Place {
  test::TemporaryFolder folder;
  std::string config = (folder.path() / "gossamer.toml").string();
  std::string control = (folder.path() / "sockets" / "control.sock").string();

  Place() { test::write_file(config, config_text(folder.path())); }
  [[nodiscard]] Program daemon(std::vector<std::string> arguments) const {
    return {folder, GOSSAMER_DAEMON, std::move(arguments)};
  }
  [[nodiscard]] Program ctl(std::vector<std::string> arguments) const {
    return {folder, GOSSAMER_CTL, std::move(arguments)};
  }
};

}  // namespace

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
  CHECK(daemon.says("gossamer.toml:1: not valid TOML"));

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
