// The log: levels, rotation, files that cannot be written.

#include "daemon/log/log.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

#include "daemon/log/log_fields.hpp"
#include "daemon/log/repeat_filter.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

TEST_CASE("the log keeps what its level says, and goes on in a new file after rotation") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "log";
  auto log = Log::open({LogLevel::warning, file});
  REQUIRE(log);
  log->logger().info("hidden");
  log->logger().warn("first");
  log->set_level(LogLevel::trace);
  log->logger().info("second");
  std::filesystem::rename(file, folder.path() / "old");
  REQUIRE(log->reopen());
  log->logger().info("third");
  const std::string old = test::read_file(folder.path() / "old");
  CHECK_THAT(old, Contains("first") && Contains("second") && !Contains("hidden") && !Contains("third"));
  CHECK_THAT(test::read_file(file), Contains("third"));
}

TEST_CASE("the newest lines are kept in memory, of what the level lets through, also after rotation") {
  const test::TemporaryFolder folder;
  auto log = Log::open({LogLevel::info, folder.path() / "log"});
  REQUIRE(log);
  log->logger().debug("hidden");
  for (std::size_t i = 0; i <= recent_log_lines; ++i)  // each is of a kind of its own
    log->logger().info("line {}.", std::string(i + 1, 'i'));
  REQUIRE(log->reopen());
  log->logger().warn("last");
  const std::vector<std::string> recent = log->recent();
  REQUIRE(recent.size() == recent_log_lines);
  CHECK_THAT(recent.front(), Contains("info") && Contains("line iii."));
  CHECK_THAT(recent.back(), Contains("warning") && Contains("last"));
}

TEST_CASE("a log file that cannot be written is a clear error at the start, and no error later") {
  const test::TemporaryFolder folder;
  const auto log = Log::open({LogLevel::info, folder.path()});
  REQUIRE_FALSE(log);
  CHECK_THAT(log.error(), Contains("cannot be written") && Contains("[log] file"));
  if (std::filesystem::exists("/dev/full")) {
    auto full = Log::open({LogLevel::info, "/dev/full"});
    REQUIRE(full);
    full->logger().info("nowhere");
  }
}

TEST_CASE("a log for programs has fields, whatever is in a line") {
  const test::TemporaryFolder folder;
  const auto lines_of = [&](LogFormat format) {
    const auto file = folder.path() / "log";
    std::filesystem::remove(file);
    auto log = Log::open({LogLevel::info, file, format});
    REQUIRE(log);
    log->logger().warn("job digits: the disk is full: free \"some\"\nspace");
    log->logger().info("started");
    log->logger().error("job of nobody: \xff");
    log->logger().info("job text: node 0123abcd runs a job of this name");
    return test::read_file(file);
  };
  std::istringstream json(lines_of(LogFormat::json));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(json, line);)
    objects.push_back(nlohmann::json::parse(line));
  REQUIRE(objects.size() == 4);
  CHECK(objects[0].at("job") == "digits");
  CHECK(objects[0].at("level") == "warning");
  CHECK(objects[0].at("message") == "the disk is full: free \"some\"\nspace");
  CHECK(objects[0].at("time").get<std::string>().size() == 24);
  CHECK_FALSE(objects[1].contains("job"));
  CHECK_FALSE(objects[2].contains("job"));
  CHECK_FALSE(objects[2].contains("node"));
  CHECK(objects[3].at("job") == "text");
  CHECK(objects[3].at("node") == "0123abcd");
  std::istringstream pairs(lines_of(LogFormat::keyvalue));
  std::string line;
  std::getline(pairs, line);
  CHECK_THAT(line, StartsWith("time=20") &&
                       EndsWith(R"( level=warning job=digits message="the disk is full: free \"some\"\nspace")"));
  std::getline(pairs, line);
  CHECK_THAT(line, EndsWith(" level=info message=started"));
}

TEST_CASE("a line is about a job and a node where it says so, and about none else") {
  struct Line {
    std::string_view text, job, node;
  };
  const Line lines[] = {
      {"job digits: runs", "digits", ""},
      {"job digits:", "", ""},
      {"job two words: runs", "", ""},
      {"the job digits: runs", "", ""},
      {"node 89abcdef is gone", "", "89abcdef"},
      {"the link to node 00000000 is down: silent", "", "00000000"},
      {"job digits: from node 89abcdef, then node 01234567", "digits", "89abcdef"},
      {"this node has 12345678", "", ""},
      {"node 89abcde is short", "", ""},
      {"node 89abcdef0 is long", "", ""},
      {"node 89abcdef-host", "", ""},
      {"node 89ABCDEF", "", ""},
      {"a name: node node-1, then node 89abcdef", "", "89abcdef"},
      {"", "", ""},
  };
  for (const Line& line : lines) {
    INFO(line.text);
    CHECK(fields_of(line.text).job == line.job);
    CHECK(fields_of(line.text).node == line.node);
  }
  CHECK(fields_of("job digits: node 89abcdef: done").message == "node 89abcdef: done");
  CHECK(fields_of("job of nobody: done").message == "job of nobody: done");
}

TEST_CASE("a warning that is said again and again does not fill the disk") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "log";
  auto log = Log::open({LogLevel::info, file});
  REQUIRE(log);
  for (int i = 0; i < 1000; ++i)
    log->logger().warn("refused {}.", i);
  for (int i = 0; i < 100; ++i)
    log->logger().info("information {}.", i);
  const std::string text = test::read_file(file);
  CHECK_THAT(text, Contains("refused 0.") && Contains("refused 4.") && !Contains("refused 5."));
  CHECK_THAT(text, Contains("information 29.") && !Contains("information 30."));
}

TEST_CASE("how many lines were held back is told by the next flush after their minute, without another line") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "log";
  auto log = Log::open({LogLevel::info, file});
  REQUIRE(log);
  const auto almost_a_minute_ago =
      std::chrono::system_clock::now() - RepeatFilter::window + std::chrono::milliseconds(500);
  for (int i = 0; i < 11; ++i)
    log->logger().log(almost_a_minute_ago, spdlog::source_loc{}, spdlog::level::warn, "again");
  CHECK_THAT(test::read_file(file), !Contains("more like it"));
  const auto in_time = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (test::read_file(file).find("again (and 6 more like it within 60 s)") == std::string::npos) {
    REQUIRE(std::chrono::steady_clock::now() < in_time);
    log->logger().flush();
  }
}

TEST_CASE("news without end drive no warning out of the log") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "log";
  auto log = Log::open({LogLevel::info, file});
  REQUIRE(log);
  for (int i = 0; i < 10'000; ++i)  // each is of a kind of its own
    log->logger().info("process {} is gone",
                       std::string(1, static_cast<char>('a' + i % 26)) + std::string(i / 26, 'b'));
  log->logger().warn("node x is denied in the whole cluster");
  log->logger().info("another process is gone");
  const std::string text = test::read_file(file);
  CHECK_THAT(text, Contains("is denied in the whole cluster") && !Contains("another process is gone"));
}
