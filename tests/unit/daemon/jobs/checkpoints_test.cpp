// The disk's thread is watched: a disk that does not answer is reported, and a slow one is not.

#include "daemon/jobs/checkpoints.hpp"

#include <future>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

/// Looks at the disk every second, for so long.
void watch_for(TimeUs later_us, Checkpoints& checkpoints, TimeUs& now) {
  for (; later_us > us_per_s; later_us -= us_per_s)
    checkpoints.watch(now += us_per_s);
  checkpoints.watch(now += later_us);
}

}  // namespace

TEST_CASE("a disk that has not answered for a while is told of until it is back") {
  asio::io_context loop;
  Checkpoints checkpoints(loop, {.folder = "/somewhere"});
  TimeUs now = us_per_s;
  const auto watch = [&](TimeUs later_us) { watch_for(later_us, checkpoints, now); };
  watch(0);
  watch(1000 * us_per_s);  // no task waits, so the disk is not silent
  CHECK(checkpoints.silent_us() == 0);

  std::promise<void> back;
  REQUIRE(checkpoints.disk().submit(Workers::Work([&] { back.get_future().wait(); }), Workers::Work([] {})));
  watch(Checkpoints::disk_patience_us - 1);
  CHECK(checkpoints.silent_us() == 0);
  CHECK_FALSE(checkpoints.trouble());
  watch(1);
  CHECK(checkpoints.silent_us() == Checkpoints::disk_patience_us);
  CHECK(checkpoints.trouble_text().starts_with("the disk of /somewhere has not answered for 10 s: "));
  watch(us_per_s);
  CHECK(checkpoints.trouble()->text.find("for 11 s") != std::string::npos);
  checkpoints.watch(now += 1000 * us_per_s);  // this process was stopped, and does not count the time
  CHECK(checkpoints.trouble()->text.find("for 13 s") != std::string::npos);

  back.set_value();
  REQUIRE(test::run_until(loop, [&] { return checkpoints.disk().pending() == 0; }));
  watch(us_per_s);
  CHECK(checkpoints.silent_us() == 0);
  CHECK(checkpoints.trouble_text().empty());
  CHECK(checkpoints.stop_within(std::chrono::seconds(20)));
}

TEST_CASE("a disk that is slow, but gets on, is left alone") {
  asio::io_context loop;
  Checkpoints checkpoints(loop, {.folder = "/somewhere"});
  TimeUs now = 1000 * us_per_s;  // the machine has been up for a while before the first look
  for (int i = 0; i < 5; ++i) {
    std::promise<void> next, last;
    REQUIRE(checkpoints.disk().submit(Workers::Work([&] { next.get_future().wait(); }), Workers::Work([] {})));
    REQUIRE(checkpoints.disk().submit(Workers::Work([&] { last.get_future().wait(); }), Workers::Work([] {})));
    checkpoints.watch(now);
    watch_for(Checkpoints::disk_patience_us - 1, checkpoints, now);
    const std::uint64_t before = checkpoints.disk().finished();
    next.set_value();
    REQUIRE(test::run_until(loop, [&] { return checkpoints.disk().finished() > before; }));
    checkpoints.watch(now += 1);
    CHECK(checkpoints.silent_us() == 0);
    last.set_value();
    REQUIRE(test::run_until(loop, [&] { return checkpoints.disk().pending() == 0; }));
    checkpoints.watch(now);
    CHECK(checkpoints.silent_us() == 0);
  }
}
