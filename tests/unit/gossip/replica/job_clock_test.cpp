// The clock of a job of honest replicas, and what a replica that lies can do to it.

#include "gossip/replica/job_clock.hpp"
#include "catch.hpp"
#include "node_id.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

using gossamer::test::node_id;

/// This replica and others, each of which trains so many samples a second. The clock is computed ten times a second,
/// and each other replica tells its clock once a second.
struct Job {
  JobClock clock = {};
  double own = 0;
  double own_pace = 100;
  bool ended = false;
  struct Other {
    double at = 0;
    double pace = 0;
    std::uint64_t told = 0;
    std::optional<std::uint64_t> lie = {};
    bool ended = false;
  };
  std::vector<Other> others = {};
  int looks = 0;
  std::uint64_t least = 0;  ///< the clock does not go back
  bool falls = false;       ///< the clock may fall, because no replica claims as much any more

  void train(double seconds) {
    for (int i = 0; i < static_cast<int>(seconds * 10); ++i) {
      own += own_pace / 10;
      std::vector<JobClock::Claim> claims;
      for (std::size_t n = 0; n < others.size(); ++n) {
        Other& other = others[n];
        other.at += other.pace / 10;
        if (looks % 10 == static_cast<int>(n)) other.told = other.lie.value_or(static_cast<std::uint64_t>(other.at));
        claims.push_back({node_id(static_cast<std::uint8_t>(n + 1)), other.told, other.ended});
      }
      clock.look(now_us(), {.clock = own_clock(), .ended = ended}, std::move(claims));
      ++looks;
      REQUIRE((falls || clock.value() >= least));
      least = clock.value();
    }
  }
  void steps_of(double seconds_each, int steps) {
    const double pace = std::exchange(own_pace, 0);
    for (int i = 0; i < steps; ++i) {
      train(seconds_each);
      own += pace * seconds_each;
    }
    own_pace = pace;
  }
  /// Ends the run: all replicas tell their last clocks.
  void end() {
    std::vector<JobClock::Claim> claims;
    for (std::size_t n = 0; n < others.size(); ++n) {
      const Other& other = others[n];
      claims.push_back(
          {node_id(static_cast<std::uint8_t>(n + 1)), other.lie.value_or(static_cast<std::uint64_t>(other.at))});
    }
    for (int i = 0; i < 100; ++i)
      clock.end(now_us(), own_clock(), claims);
  }
  [[nodiscard]] TimeUs now_us() const { return looks * us_per_s / 10; }
  [[nodiscard]] std::uint64_t own_clock() const { return static_cast<std::uint64_t>(own); }
  [[nodiscard]] double value() const { return static_cast<double>(clock.value()); }
};

}  // namespace

TEST_CASE("the job's clock is that of the furthest, where none is twice as fast as all others") {
  for (const double pace : {50.0, 100.0, 150.0, 190.0}) {
    CAPTURE(pace);
    Job job{.others = {{.pace = pace}, {.pace = 90}}};
    job.train(100);
    const double furthest = std::max(job.own, job.others[0].at);
    CHECK(job.value() <= furthest);
    CHECK(job.value() >= furthest - 3 * std::max(pace, job.own_pace));
  }
}

TEST_CASE("a slow replica follows the fast ones, however slow it is") {
  Job job{.own_pace = 0.01, .others = {{.pace = 1000}, {.pace = 600}}};
  job.train(100);
  CHECK(job.value() >= 96'000);
}

TEST_CASE("with steps of ten seconds the clock follows at each") {
  Job job{.others = {{.pace = 400}}};
  job.steps_of(10, 20);
  job.train(3);
  CHECK(job.value() >= job.others[0].at - 10 * 400 - 3 * 400);
}

TEST_CASE("of two, one far ahead is followed eight times as fast as the other trains") {
  Job job{.others = {{.pace = 3000}}};
  job.train(15);
  const double before = job.value() - 8 * job.own;
  job.train(85);
  CHECK(job.value() == Approx(8 * job.own + before).epsilon(0.02));
  REQUIRE(job.clock.ahead());
  CHECK(job.clock.ahead()->node == node_id(1));
  job.others[0].pace = 0;  // it waits for this replica
  job.train(300);
  CHECK(job.clock.value() == job.others[0].told);
  CHECK_FALSE(job.clock.ahead());
}

TEST_CASE("at a start, and after others were lost, a single one that is far ahead is not one of two yet") {
  const bool starts = GENERATE(true, false);
  CAPTURE(starts);
  Job job{.others = {{.pace = 3000}}};
  if (!starts) {
    job.others.push_back({.pace = 90});
    job.train(30);
    job.others.pop_back();
  }
  job.train(3);
  CHECK(job.value() <= 2.1 * job.own);
  job.train(100);
  CHECK(job.value() > 5 * job.own);
}

TEST_CASE("at the end of a run a single one is followed as one of two only if nobody else was there lately") {
  Job job{.others = {{.at = 200'000}}};
  job.own = 10'000;
  const double seconds = GENERATE(0, 3, 20);
  job.train(seconds);
  job.end();
  CHECK(job.value() == Approx((seconds < 5 ? 2 : 8) * job.own));
}

TEST_CASE("of more, one far ahead is followed as many times as fast as the fastest of the others as is set") {
  const std::uint64_t pace = GENERATE(1, 2, 16);
  Job job{.others = {{.pace = 3000}, {.pace = 110}}};
  job.clock.set_pace(pace);
  job.train(100);
  CHECK(job.value() == Approx(static_cast<double>(pace) * job.others[1].at).epsilon(0.04));
  CHECK(job.clock.ahead());
}

TEST_CASE("a third that lie make the clock twice too large at most, and that is gone a minute after them") {
  const std::size_t liars = GENERATE(1, 2, 3);
  const double lie = GENERATE(1.5, 3, 30, 60);
  const bool idle = GENERATE(true, false);
  CAPTURE(liars, lie, idle);
  Job job{.others = std::vector<Job::Other>(3 * liars - 1, {.pace = 100})};
  job.train(20);
  for (int i = 0; i < 60; ++i) {
    if (idle && i == 10) job.own_pace = 0;
    for (std::size_t n = 0; n < job.others.size(); ++n) {
      Job::Other& other = job.others[n];
      if (n < liars) other.lie = static_cast<std::uint64_t>(lie * job.own + static_cast<double>(n));
      if (idle && i == 10) other.pace = 0;
    }
    job.train(5);
    REQUIRE(job.value() <= 2 * job.own + 100);
  }
  const double truth = job.own;
  job.others.erase(job.others.begin(), job.others.begin() + static_cast<std::ptrdiff_t>(liars));
  job.falls = true;
  job.train(65);
  CHECK(job.value() <= std::max(job.own, truth));
}

TEST_CASE("from the first look on, a third that lie make the clock twice too large at most") {
  Job job{.others = {{.pace = 100}, {.pace = 100}, {.pace = 0, .lie = 60'000}}};
  for (int i = 0; i < 20; ++i) {
    job.train(0.5);
    CHECK(job.value() <= 2 * job.own);
  }
}

TEST_CASE("what more than a third say is followed at once") {
  Job job{.others = {{.at = 2'000'000, .pace = 100}, {.at = 2'000'100, .pace = 100}, {.pace = 100}, {.pace = 100}}};
  job.train(3);
  CHECK(job.value() >= 2'000'000);
}

TEST_CASE("one replica that lies does not move the job's clock, and nothing of it stays") {
  const std::uint64_t lie = std::uint64_t{1} << GENERATE(53, 40, 24);
  const bool from_the_beginning = GENERATE(true, false);
  CAPTURE(lie, from_the_beginning);
  Job job{.others = {{.pace = 100}, {.pace = 90}}};
  if (from_the_beginning) job.others[1].lie = lie;
  job.train(50);
  job.others[1].lie = lie;
  job.train(50);
  CHECK(job.value() <= std::max(job.own, job.others[0].at));
  REQUIRE(job.clock.disbelieved());
  CHECK((job.clock.disbelieved()->node == node_id(2) && job.clock.disbelieved()->clock == lie));
  // The lie is corrected, or the liar goes.
  if (from_the_beginning) job.others[1].lie.reset();
  if (!from_the_beginning) job.others.pop_back();
  job.train(10);
  CHECK(job.value() == Approx(job.own).epsilon(0.01));
  CHECK_FALSE(job.clock.disbelieved());
}

TEST_CASE("lies move the clock of a replica that is behind the others no more than that of the first") {
  const std::size_t liars = GENERATE(1, 2, 3);
  const std::uint64_t lie = std::uint64_t{1} << GENERATE(53, 40, 24);
  const double ahead = GENERATE(0, 5'000);
  CAPTURE(liars, lie, ahead);
  Job job{.own_pace = 50, .others = std::vector<Job::Other>(3 * liars - 1, {.at = ahead, .pace = 100})};
  for (std::size_t i = 0; i < liars; ++i)
    job.others[i].lie = lie - i;
  const Job::Other& honest = job.others.back();
  for (int i = 0; i < 20; ++i) {
    job.train(5);
    REQUIRE(job.value() <= 2 * honest.at);
  }
  REQUIRE(job.value() >= honest.at - 300);
  job.ended = true;
  job.own_pace = 0;
  job.end();
  CHECK(job.value() <= 2 * honest.at);
}

TEST_CASE("with a partner only, one that lies is not believed, either") {
  Job job{.others = {{.lie = max_clock_samples}}};
  job.train(100);
  CHECK(job.value() == job.own);
}

TEST_CASE("two that say the same are believed") {
  Job job{.own_pace = 1, .others = {{.at = 5'000'000, .pace = 100}, {.at = 4'900'000, .pace = 100}}};
  job.train(10);
  CHECK_FALSE(job.clock.disbelieved());
  CHECK(job.value() >= 4'900'000);
}

TEST_CASE("a third that says the same lie does not move the job's clock") {
  const std::size_t liars = GENERATE(1, 2, 3);
  const std::uint64_t lie = std::uint64_t{1} << GENERATE(50, 24);
  CAPTURE(liars, lie);
  Job job{.others = std::vector<Job::Other>(3 * liars - 1, {.pace = 100})};
  job.train(50);
  for (std::size_t i = 0; i < liars; ++i)
    job.others[i].lie = lie + i;
  job.train(50);
  CHECK(job.value() <= job.own + 200);
  REQUIRE(job.clock.disbelieved());
  CHECK(job.clock.disbelieved()->clock == lie + liars - 1);
}

TEST_CASE("where nobody else trains, the only one that does is followed slowly, and not before a minute") {
  Job job{.own = 1'000'000, .own_pace = 0, .others = {{.at = 1'000'000, .pace = 500}}};
  job.train(59);
  CHECK(job.value() == 1'000'000);
  job.train(60);
  CHECK(job.value() >= job.others[0].at - 1000);
}

TEST_CASE("clocks do not leave their range") {
  CHECK(later_clock(5, 7) == 12);
  CHECK(later_clock(max_clock_samples - 1, 1) == max_clock_samples);
  CHECK(later_clock(max_clock_samples, std::uint64_t{1} << 63) == max_clock_samples);
  CHECK(later_clock(1, max_clock_samples) == max_clock_samples);
  CHECK(is_believable(free_lead_samples, 0));
  CHECK_FALSE(is_believable(free_lead_samples + 1, 0));
  CHECK(is_believable(max_lead * 1000 + free_lead_samples, 1000));
  CHECK_FALSE(is_believable(max_lead * 1000 + free_lead_samples + 1, 1000));
  CHECK(is_believable(max_clock_samples, max_clock_samples));
  CHECK_FALSE(is_believable(max_clock_samples + 1, max_clock_samples));
}

TEST_CASE("replicas that have stopped take the furthest clock at once") {
  JobClock clock;
  clock.look(0, {.clock = 5'216}, {{node_id(1), 5'300}});
  clock.end(1, 5'216, {{node_id(1), 7'072}});
  CHECK(clock.value() == 7'072);
}

TEST_CASE("who has ended early follows those that train on no faster, and all end with one clock") {
  for (const double pace : {60.0, 100.0, 190.0}) {
    INFO("others train " << pace / 100 << " times as fast");
    for (const std::size_t others : {1U, 2U, 5U}) {
      Job job;
      job.others.assign(others, {.pace = pace});
      job.train(2.3);
      job.ended = true;
      job.own_pace = 0;
      for (std::size_t n = 1; n < others; ++n) {  // these end at the same time
        job.others[n].ended = true;
        job.others[n].pace = 0;
      }
      job.train(1200.7);
      job.end();
      CHECK(job.value() == std::floor(job.others[0].at));
    }
  }
}

TEST_CASE("while others wait for the end one that lies makes the clock as much too large as while they train") {
  Job job{.others = {{.pace = 100}, {.pace = 100, .lie = 60'000}}};
  job.train(10);
  CHECK(job.value() == Approx(2000).epsilon(0.3));
  job.ended = job.others[0].ended = true;
  job.own_pace = job.others[0].pace = 0;
  job.train(5);
  CHECK(job.value() <= 2000);
  job.train(5);
  CHECK(job.value() == Approx(3000).epsilon(0.1));  // as if the others had trained on, at twice their speed
  job.end();
  CHECK(job.value() == Approx(3600).epsilon(0.1));
}

TEST_CASE("while a slow one trains on after the others, one that lies makes the clock twice too large at most") {
  Job job{.own_pace = 80, .others = {{.pace = 400}, {.pace = 200}, {.pace = 100, .lie = 60'000}}};
  job.train(20);
  job.others[0].ended = job.others[1].ended = true;
  job.others[0].pace = job.others[1].pace = 0;
  for (int i = 0; i < 9; ++i) {
    job.train(1);
    CHECK(job.value() <= 2 * 8'000);
  }
}

TEST_CASE("at the end, what may have been trained since the last reports is added once") {
  Job job{.others = {{.pace = 100}, {.pace = 100, .lie = 60'000}}};
  job.train(10);
  job.ended = job.others[0].ended = true;
  job.own_pace = job.others[0].pace = 0;
  for (int i = 0; i < 20; ++i) {
    job.train(1);
    job.end();
  }
  CHECK(job.value() <= 1'000 + 2 * 100 * (20 + 4));
}

TEST_CASE("one that lies and ends before all others is followed as far as among all of them") {
  JobClock clock;
  clock.look(0, {.clock = 1'000}, {{node_id(1), 1'000}, {node_id(2), 1'000}, {node_id(3), 60'000}});
  clock.end(1, 1'000, {{node_id(3), 60'000}});
  CHECK(clock.value() == 2'000);
}

TEST_CASE("a third that lie and end before all others do not believe each other for the rest") {
  JobClock clock;
  std::vector<JobClock::Claim> others;
  for (std::uint8_t n = 1; n <= 9; ++n)
    others.push_back({node_id(n), n <= 3 ? std::uint64_t{60'000} + n : 1'000});
  clock.look(0, {.clock = 1'000}, others);
  clock.end(1, 1'000, {others[0], others[1]});
  CHECK(clock.value() == 2'000);
}

TEST_CASE("one that lies makes the clock at the end no larger than the pace allows") {
  JobClock two;
  two.end(0, 1'000, {{node_id(1), 60'000}});
  CHECK(two.value() == 2'000);
  JobClock three;
  three.end(0, 1'000, {{node_id(1), 60'000}, {node_id(2), 900}});
  CHECK(three.value() == 2'000);
  three.end(0, 1'000, {{node_id(1), max_clock_samples}, {node_id(2), 900}});
  CHECK(three.value() == 2'000);
}
