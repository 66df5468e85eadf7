// The control socket: answers, and everything malformed.

#include "daemon/control/control_server.hpp"

#include "daemon/control/control_commands.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>
#include <random>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

struct Serving {
  explicit Serving(std::chrono::milliseconds timeout = 10s) {
    auto opened = ControlServer::open(
        loop, path,
        [this](const json& request, const Caller& caller) {
          const auto may = [&](CommandFor whom) {
            return whom == CommandFor::everyone || is_owner(caller.user) ||
                   (whom == CommandFor::steerers && request.value("job", "") == "theirs");
          };
          if (!table.empty()) return answer_from(table, request, may);
          return echo(request);
        },
        log.logger, timeout);
    REQUIRE(opened);
    server = std::move(*opened);
  }

  [[nodiscard]] json echo(const json& request) {
    ++requests;
    return {{"echo", request["command"]}, {"big", std::string(request.value("big", 0u), 'b')}};
  }

  [[nodiscard]] gossamer::FileDescriptor connect() const { return test::connect_to(path, SOCK_STREAM); }

  /// Sends `bytes` and reads one line. None if the server closed the connection instead.
  [[nodiscard]] std::optional<json> ask(const gossamer::FileDescriptor& socket, const std::string& bytes) {
    REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    return line(socket);
  }
  [[nodiscard]] std::optional<json> line(const gossamer::FileDescriptor& socket) {
    std::string text;
    bool closed = false;
    REQUIRE(test::run_until(loop, [&] {
      char part[4096];
      ssize_t got = 0;
      while ((got = ::recv(socket.get(), part, sizeof part, MSG_DONTWAIT)) > 0)
        text.append(part, static_cast<std::size_t>(got));
      closed = got == 0 || errno != EAGAIN;
      return closed || (!text.empty() && text.back() == '\n');
    }));
    if (text.empty()) return std::nullopt;
    return json::parse(text);
  }

  test::TemporaryFolder folder;
  std::string path = (folder.path() / "control.sock").string();
  asio::io_context loop;
  test::TestLog log;
  int requests = 0;
  std::vector<ControlCommand> table;  // empty: everything is answered by echo()
  std::unique_ptr<ControlServer> server;
};

}  // namespace

TEST_CASE("a connection asks as often as it likes") {
  Serving daemon;
  const gossamer::FileDescriptor socket = daemon.connect();
  CHECK(daemon.ask(socket, "{\"command\": \"a\"}\n")->at("echo") == "a");
  CHECK(daemon.ask(socket, "{\"command\": \"b\", \"big\": 1000000}\n")->at("big").get<std::string>().size() ==
        1'000'000);
  // Sends a request byte by byte.
  const std::string request = "{\"command\": \"c\"}\n";
  for (std::size_t i = 0; i + 1 < request.size(); ++i)
    REQUIRE(::send(socket.get(), &request[i], 1, MSG_NOSIGNAL) == 1);
  CHECK(daemon.ask(socket, "\n")->at("echo") == "c");
  CHECK(daemon.requests == 3);
}

TEST_CASE("nobody's requests take more than a tenth of the loop's time") {
  using Clock = std::chrono::steady_clock;
  const auto processor_time = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  Serving daemon;
  std::vector<Clock::duration> took;
  daemon.table = {{"look", CommandFor::everyone, [&](const json&) -> json {
                     const auto begun = processor_time();
                     while (processor_time() - begun < 2ms) {
                     }
                     took.push_back(processor_time() - begun);
                     return {{"times", took.size()}};
                   }}};
  const auto begun = Clock::now();
  const gossamer::FileDescriptor sockets[] = {daemon.connect(), daemon.connect()};  // of one user
  for (int i = 0; i < 5; ++i) {
    for (const auto& socket : sockets)
      REQUIRE(::send(socket.get(), "{\"command\": \"look\"}\n", 20, MSG_NOSIGNAL) == 20);
    for (const auto& socket : sockets)
      CHECK(daemon.line(socket)->contains("times"));
  }
  REQUIRE(took.size() == 10);
  Clock::duration least{};
  for (std::size_t i = 0; i + 1 < took.size(); ++i)
    least += (1 + control_rest) * took[i];
  CHECK(Clock::now() - begun >= least);
}

TEST_CASE("what changes the cluster is for root and the daemon's user") {
  Serving daemon;
  const auto echo = [&](const json& request) { return daemon.echo(request); };
  daemon.table = {{"invite", CommandFor::owners, echo},
                  {"status", CommandFor::everyone, echo},
                  {"job_set", CommandFor::steerers, echo}};
  const auto unknown = daemon.ask(daemon.connect(), "{\"command\": \"dance\"}\n");
  CHECK(unknown->at("error") ==
        "command \"dance\" is not known; there are status, and for root and the user that "
        "gossamerd runs as invite, job_set");
  CHECK(daemon.ask(daemon.connect(), "{\"command\": \"invite\"}\n")->at("echo") == "invite");
  if (::geteuid() != 0) return;  // only root can take another user's id
  std::filesystem::permissions(daemon.folder.path(), std::filesystem::perms::all);
  std::filesystem::permissions(daemon.path, std::filesystem::perms::all);
  constexpr uid_t nobody = 65534;
  REQUIRE(::seteuid(nobody) == 0);
  const gossamer::FileDescriptor socket = daemon.connect();
  REQUIRE(::seteuid(0) == 0);
  const auto refused = daemon.ask(socket, "{\"command\": \"invite\"}\n");
  REQUIRE(refused);
  CHECK_THAT(refused->at("error").get<std::string>(), Contains("sudo"));
  CHECK(daemon.ask(socket, "{\"command\": \"status\"}\n")->at("echo") == "status");
  CHECK(daemon.ask(socket, "{\"command\": \"job_set\", \"job\": \"theirs\"}\n")->at("echo") == "job_set");
  const auto not_theirs = daemon.ask(socket, "{\"command\": \"job_set\", \"job\": \"others\"}\n");
  CHECK_THAT(not_theirs->at("error").get<std::string>(), Contains("[rights] steer"));
  CHECK(daemon.requests == 3);
}

TEST_CASE("several requests at once are answered one after the other") {
  Serving daemon;
  const gossamer::FileDescriptor socket = daemon.connect();
  const std::string two = "{\"command\": \"a\"}\n{\"command\": \"b\"}\n";
  REQUIRE(::send(socket.get(), two.data(), two.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(two.size()));
  std::string text;
  CHECK(test::run_until(daemon.loop, [&] {
    char part[4096];
    const ssize_t got = ::recv(socket.get(), part, sizeof part, MSG_DONTWAIT);
    if (got > 0) text.append(part, static_cast<std::size_t>(got));
    return std::ranges::count(text, '\n') == 2;
  }));
  CHECK_THAT(text, Contains("\"echo\":\"a\"") && Contains("\"echo\":\"b\""));
}

TEST_CASE("what is no request is answered with what is wrong") {
  Serving daemon;
  const struct {
    std::string line;
    const char* message;
  } cases[] = {
      {"\n", "not JSON"},
      {"status\n", "not JSON"},
      {"{\"command\": \"status\"\n", "not JSON"},
      {std::string("\xff\xfe\0\n", 4), "not JSON"},
      {"[]\n", "an object with a string"},
      {"{}\n", "an object with a string"},
      {"{\"command\": 1}\n", "an object with a string"},
      {"{\"command\": \"x\", \"big\": \"much\"}\n",
       "a value that the command x takes is missing, or is of another type"},
      {std::string(30'000, '[') + "\n", "not JSON"},
      {std::string(30'000, '[') + std::string(30'000, ']') + "\n", "an object with a string"},
  };
  const gossamer::FileDescriptor socket = daemon.connect();
  for (const auto& [line, message] : cases) {
    CAPTURE(line.substr(0, 40));
    const auto answer = daemon.ask(socket, line);
    REQUIRE(answer);
    CHECK_THAT(answer->at("error").get<std::string>(), Contains(message) && !Contains("json.exception"));
  }
  CHECK(daemon.ask(socket, "{\"command\": \"still\"}\n")->at("echo") == "still");
}

TEST_CASE("numbers are whole and fit, or who sends them is told") {
  const auto answer = [](const std::string& number) {
    const auto handler = [](const json& request, const Caller&) -> json {
      return {{"got", number_in<std::uint32_t>(request, "first", 7)}};
    };
    return json::parse(control_answer(R"({"command": "layout")" + number + "}", handler, {}));
  };
  CHECK(answer("")["got"] == 7);
  CHECK(answer(R"(, "first": 0)")["got"] == 0);
  CHECK(answer(R"(, "first": 4294967295)")["got"] == 4294967295U);
  for (const char* wrong :
       {"4294967296", "18446744073709551615", "-1", "1.5", "1e300", "-1e300", "\"1\"", "null", "[]"}) {
    INFO(wrong);
    CHECK(answer(std::string(R"(, "first": )") + wrong)["error"] == "\"first\" is a whole number from 0 to 4294967295");
  }
}

TEST_CASE("a line without end is cut off with an answer") {
  Serving daemon;
  const gossamer::FileDescriptor socket = daemon.connect();
  const auto answer = daemon.ask(socket, std::string(max_control_line_bytes, 'x'));
  REQUIRE(answer);
  CHECK_THAT(answer->at("error").get<std::string>(), Contains("at most 65536 bytes"));
  CHECK_FALSE(daemon.line(socket));
  CHECK(daemon.server->clients() == 0);
}

TEST_CASE("who says nothing, or does not read, is dropped") {
  Serving daemon(30ms);
  const gossamer::FileDescriptor silent = daemon.connect();
  CHECK_FALSE(daemon.line(silent));
  const gossamer::FileDescriptor deaf = daemon.connect();
  const std::string request = "{\"command\": \"a\", \"big\": 4000000}\n";
  REQUIRE(::send(deaf.get(), request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
  CHECK(test::run_until(daemon.loop, [&] { return daemon.requests == 1; }));
  CHECK(test::run_until(daemon.loop, [&] { return daemon.server->clients() == 0; }));
}

TEST_CASE("connections are bounded, and nothing leaks") {
  Serving daemon;
  const std::size_t descriptors = test::open_descriptors();
  {
    std::vector<gossamer::FileDescriptor> open;
    for (std::size_t i = 0; i < max_control_clients; ++i) {
      open.push_back(daemon.connect());
      CHECK(test::run_until(daemon.loop, [&] { return daemon.server->clients() == i + 1; }));
    }
    const gossamer::FileDescriptor one_more = daemon.connect();
    const auto answer = daemon.line(one_more);
    REQUIRE(answer);
    CHECK_THAT(answer->at("error").get<std::string>(), Contains("too many"));
  }
  CHECK(test::run_until(daemon.loop, [&] { return daemon.server->clients() == 0; }));
  CHECK(test::open_descriptors() == descriptors);
}

TEST_CASE("no user locks out another, or the owners") {
  Serving daemon;
  if (::geteuid() != 0) {
    WARN("SKIPPED: needs root, to connect as other users");
    return;
  }
  REQUIRE(::chmod(daemon.path.c_str(), 0666) == 0);
  REQUIRE(::chmod(daemon.folder.path().c_str(), 0755) == 0);
  std::vector<gossamer::FileDescriptor> open;
  const auto connected_as = [&](uid_t user) {
    const std::size_t before = daemon.server->clients();
    // A system call changes this thread only. The C library would change all threads.
    REQUIRE(::syscall(SYS_setresuid, -1, user, -1) == 0);
    open.push_back(daemon.connect());
    REQUIRE(::syscall(SYS_setresuid, -1, 0, -1) == 0);
    bool refused = false;
    REQUIRE(test::run_until(daemon.loop, [&] {
      char first = 0;
      refused = ::recv(open.back().get(), &first, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
      return refused || daemon.server->clients() > before;
    }));
    return !refused;
  };
  std::size_t first = 0;
  while (connected_as(54'321))
    ++first;
  std::size_t second = 0;
  while (connected_as(54'322))
    ++second;
  CHECK(first == max_control_clients * 3 / 8);
  CHECK(second == first);
  CHECK_FALSE(connected_as(54'323));
  for (std::size_t i = 0; i < max_control_clients / 4; ++i)
    CHECK(connected_as(0));
  CHECK_FALSE(connected_as(0));
}

TEST_CASE("random bytes are answered or dropped") {
  Serving daemon;
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const gossamer::FileDescriptor socket = daemon.connect();
    std::string bytes(1 + random() % 300, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random());
    bytes += '\n';
    REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    char byte = 0;
    CHECK(test::run_until(daemon.loop, [&] { return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) >= 0; }));
  }
  CHECK(daemon.requests == 0);
}
