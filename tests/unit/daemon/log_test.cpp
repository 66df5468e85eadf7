// The log: levels, rotation, files that cannot be written.

#include "daemon/log.hpp"

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

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
  for (std::size_t i = 0; i <= recent_log_lines; ++i)
    log->logger().info("line {}.", i);
  REQUIRE(log->reopen());
  log->logger().warn("last");
  const std::vector<std::string> recent = log->recent();
  REQUIRE(recent.size() == recent_log_lines);
  CHECK_THAT(recent.front(), Contains("info") && Contains("line 2."));
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
