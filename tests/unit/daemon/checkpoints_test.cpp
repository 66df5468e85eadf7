// The disk's thread is watched: one that stands still is told of, once, and so is that it goes on.

#include "daemon/checkpoints.hpp"

#include <future>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

}  // namespace

TEST_CASE("a disk that has not answered for a while is told of, once, and that it is back") {
  asio::io_context loop;
  test::TestLog log;
  Checkpoints checkpoints(loop, {.folder = "/somewhere"});
  TimeUs now = us_per_s;
  const auto watch = [&](TimeUs later_us) {
    now += later_us;
    checkpoints.watch(now, log.logger);
  };
  watch(0);
  watch(1000 * us_per_s);  // nothing waits: nobody is silent
  CHECK(checkpoints.silent_us() == 0);

  std::promise<void> back;
  REQUIRE(checkpoints.disk().submit(Workers::Work([&] { back.get_future().wait(); }), Workers::Work([] {})));
  watch(Checkpoints::disk_patience_us - 1);
  CHECK(checkpoints.silent_us() == 0);
  CHECK(checkpoints.trouble().empty());
  watch(1);
  CHECK(checkpoints.silent_us() == Checkpoints::disk_patience_us);
  CHECK(checkpoints.trouble().find("/somewhere has not answered for 10 s") != std::string::npos);
  watch(us_per_s);
  CHECK(count(log.text.str(), "has not answered") == 1);

  back.set_value();
  REQUIRE(test::run_until(loop, [&] { return checkpoints.disk().pending() == 0; }));
  watch(us_per_s);
  CHECK(checkpoints.silent_us() == 0);
  CHECK(checkpoints.trouble().empty());
  CHECK(count(log.text.str(), "answers again, after 12 s") == 1);
  CHECK(checkpoints.stop_within(std::chrono::seconds(20)));
}

TEST_CASE("a disk that is slow, but gets on, is left alone") {
  asio::io_context loop;
  test::TestLog log;
  Checkpoints checkpoints(loop, {.folder = "/somewhere"});
  TimeUs now = 1000 * us_per_s;  // of a machine that has been up for a while, looked at for the first time below
  for (int i = 0; i < 5; ++i) {
    std::promise<void> next, last;
    REQUIRE(checkpoints.disk().submit(Workers::Work([&] { next.get_future().wait(); }), Workers::Work([] {})));
    REQUIRE(checkpoints.disk().submit(Workers::Work([&] { last.get_future().wait(); }), Workers::Work([] {})));
    checkpoints.watch(now, log.logger);
    checkpoints.watch(now += Checkpoints::disk_patience_us - 1, log.logger);
    const std::uint64_t before = checkpoints.disk().finished();
    next.set_value();
    REQUIRE(test::run_until(loop, [&] { return checkpoints.disk().finished() > before; }));
    checkpoints.watch(now += 1, log.logger);
    last.set_value();
    REQUIRE(test::run_until(loop, [&] { return checkpoints.disk().pending() == 0; }));
    checkpoints.watch(now, log.logger);
  }
  CHECK(log.text.str().empty());
}
