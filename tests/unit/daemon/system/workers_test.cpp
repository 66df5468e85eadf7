// The pool: results reach the loop, the queue is bounded, a stop waits for what runs.

#include "daemon/system/workers.hpp"

#include <atomic>
#include <future>
#include <latch>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"

using namespace gossamer::daemon;

TEST_CASE("tasks run on workers, and what follows on the loop") {
  asio::io_context loop;
  Workers workers(loop, 2);
  const auto loop_thread = std::this_thread::get_id();
  std::atomic<int> on_workers = 0;
  int done = 0;
  int sum = 0;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(workers.submit(
        [&, i] {
          if (std::this_thread::get_id() != loop_thread) ++on_workers;
          return i;
        },
        [&](int value) {
          if (std::this_thread::get_id() == loop_thread) ++done;
          sum += value;
        }));
  }
  CHECK(test::run_until(loop, [&] { return done == 100; }));
  CHECK(on_workers == 100);
  CHECK(sum == 4950);
  CHECK(workers.pending() == 0);
}

TEST_CASE("a full queue refuses, and leaves the functions to the caller") {
  asio::io_context loop;
  Workers workers(loop, 1, 2);
  std::latch started(1);
  std::latch release(1);
  int done = 0;
  const auto count = [&] { ++done; };
  REQUIRE(workers.submit(Workers::Work([&] {
                           started.count_down();
                           release.wait();
                         }),
                         Workers::Work(count)));
  started.wait();
  REQUIRE(workers.submit(Workers::Work([] {}), Workers::Work(count)));
  REQUIRE(workers.submit(Workers::Work([] {}), Workers::Work(count)));
  CHECK(workers.pending() == 3);
  bool ran = false;
  Workers::Work task([&] { ran = true; });
  Workers::Work after(count);
  CHECK_FALSE(workers.submit(std::move(task), std::move(after)));
  release.count_down();
  CHECK(test::run_until(loop, [&] { return done == 3; }));
  REQUIRE(task);
  REQUIRE(workers.submit(std::move(task), std::move(after)));
  CHECK(test::run_until(loop, [&] { return done == 4; }));
  CHECK(ran);
}

TEST_CASE("a stop finishes what runs, drops what waits, and refuses what comes") {
  asio::io_context loop;
  Workers workers(loop, 1);
  std::latch started(1);
  std::atomic<bool> finished = false;
  int done = 0;
  bool dropped_ran = false;
  auto held = std::make_shared<int>(1);
  REQUIRE(workers.submit(Workers::Work([&] {
                           started.count_down();
                           std::this_thread::yield();
                           finished = true;
                         }),
                         Workers::Work([&] { ++done; })));
  started.wait();
  REQUIRE(workers.submit(Workers::Work([&, held] { dropped_ran = true; }), Workers::Work([&] { ++done; })));
  workers.stop();
  CHECK(finished);
  loop.run();
  // The second task may have begun before the stop. If not, neither the second nor any later task ran.
  CHECK(done == (dropped_ran ? 2 : 1));
  CHECK(held.use_count() == 1);
  CHECK_FALSE(workers.submit(Workers::Work([] {}), Workers::Work([] {})));
  workers.stop();
}

TEST_CASE("a stop that has no patience leaves what runs, and says so") {
  asio::io_context loop;
  Workers workers(loop, 1);
  std::promise<void> back;
  std::latch started(1);
  REQUIRE(workers.submit(Workers::Work([&] {
                           started.count_down();
                           back.get_future().wait();
                         }),
                         Workers::Work([] {})));
  started.wait();
  CHECK(workers.finished() == 0);
  CHECK_FALSE(workers.stop_within(std::chrono::milliseconds(1)));
  CHECK_FALSE(workers.submit(Workers::Work([] {}), Workers::Work([] {})));
  back.set_value();
  CHECK(workers.stop_within(std::chrono::seconds(20)));
  CHECK(workers.finished() == 1);
}
