// Several clients of one job at one daemon. The daemon's own code runs with its workers, beside trainers in threads of
// their own that serve at their own speeds. Steps are multiples of a power of two, so that the mean of four is exact.

#include <algorithm>
#include <array>
#include <functional>
#include <memory>

#include "sdk/layout/slots.hpp"
#include "tests/unit/daemon/jobs/played_job.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using test::Daemon;
using test::step;
using test::steps;
using test::Trainer;

TEST_CASE("clients of a job that train at their own speeds end at the mean of what they learned, exactly") {
  using std::chrono::microseconds;
  Trainer fast(2, microseconds(20));
  Trainer middle(9, microseconds(100));
  Trainer slow(-5, microseconds(700));
  Trainer late(0, microseconds(50));
  Daemon daemon;
  const std::vector<Trainer*> all = {&fast, &middle, &slow, &late};
  daemon.attach(fast);
  daemon.attach(middle);  // while the first one joins
  daemon.attach(slow);
  daemon.attach(late);
  for (Trainer* trainer : all) {
    trainer->may_train = false;  // until all take part: before, their shares would be larger
    trainer->start();
  }
  daemon.run_until([&] { return std::all_of(all.begin(), all.end(), [](Trainer* t) { return t->running(); }); });
  for (Trainer* trainer : all)
    trainer->may_train = true;
  daemon.run_until([&] { return std::all_of(all.begin(), all.end(), [](Trainer* t) { return t->trained(); }); });
  const float expected = 2 + static_cast<float>(steps) * step;
  const auto at_expected = [&](Trainer* trainer) { return trainer->published() == Approx(expected).epsilon(1e-6); };
  daemon.run_until([&] { return std::all_of(all.begin(), all.end(), at_expected); },
                   [&] {
                     std::string text;
                     for (Trainer* t : all)
                       text += std::to_string((t->published() - 2) * 1024) + " clock " +
                               std::to_string(t->memory().header().clock.load()) + "; ";
                     return text;
                   });
  CHECK(daemon.status().processes.size() == 4);
  CHECK(daemon.status().clock == Approx(static_cast<double>(steps)).margin(4));
}

TEST_CASE("daemons die among several clients of a job: what these learned counts once at most, and most of it does") {
  std::array<Trainer, 3> trainers{
      {{1, std::chrono::microseconds(100)}, {5, std::chrono::microseconds(250)}, {9, std::chrono::microseconds(150)}}};
  test::train_while_daemons_die(trainers);
}

TEST_CASE("a client of a job goes in the middle, whoever it is, and another comes") {
  const std::size_t leaver = GENERATE(0, 1);
  Daemon daemon;
  std::array<Trainer, 2> first{{{1, std::chrono::microseconds(50)}, {7, std::chrono::microseconds(80)}}};
  std::vector<std::shared_ptr<ClientSession>> sessions;
  for (Trainer& trainer : first)
    sessions.push_back(daemon.attach(trainer));
  for (Trainer& trainer : first)
    trainer.start();
  Trainer& stays = first[1 - leaver];
  daemon.run_until([&] { return first[leaver].memory().header().clock.load() > steps / 4; });
  first[leaver].stop();
  daemon.detach(sessions[leaver]);
  sessions.clear();
  // The daemon releases the memory of a client that left, even of the one that began the job.
  int turns = 0;
  daemon.run_until([&] { return ++turns > 100; });
  Trainer late(-50, std::chrono::microseconds(50));
  daemon.attach(late);
  late.start();
  daemon.run_until([&] { return stays.trained() && late.trained(); });
  daemon.run_until([&] { return std::abs(stays.published() - late.published()) < step; });
  CHECK(stays.published() > 1 + steps * step * 0.5F);
  CHECK(stays.published() < 1 + steps * step * 2);
}

TEST_CASE("when the run is over for one of a node's clients, it holds what the others do") {
#ifdef __SANITIZE_THREAD__
  constexpr std::uint32_t ends = 15;  // each end takes two seconds there
#else
  constexpr std::uint32_t ends = 60;
#endif
  std::array<Trainer, 4> trainers{{{1, {}}, {3, {}}, {-2, {}}, {7, {}}}};
  Daemon first;
  Daemon second(false, &first);
  for (std::size_t i = 0; i < trainers.size(); ++i)
    (i < 2 ? first : second).attach(trainers[i]);
  first.run_until([&] {
    for (Trainer& trainer : trainers)
      trainer.turn();
    return std::ranges::all_of(trainers, &Trainer::running);
  });
  for (std::uint32_t end = 1; end <= ends; ++end) {
    for (std::size_t i = 0; i < trainers.size(); ++i) {
      trainers[i].memory().header().finishing = 0;
      trainers[i].may_train = true;
      for (std::uint32_t n = 0; n < (i + end) % 5; ++n)
        trainers[i].turn();
      trainers[i].may_train = false;
    }
    // The nodes need this time to hear that the programs train again.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    first.run_until([&] { return std::chrono::steady_clock::now() > until; });
    for (Trainer& trainer : trainers)
      trainer.memory().header().finishing = end;
    std::array<bool, 4> over{};
    std::size_t turns = 0;
    first.run_until([&] {
      ++turns;
      for (std::size_t i = 0; i < trainers.size(); ++i) {
        const auto answer = layout::FinishAnswer::unpack(trainers[i].memory().header().finish_answer.load());
        if (over[i]) continue;
        over[i] = answer.number == end && answer.agreed;
        // Some programs are slow. A program whose run is over serves what is due, and does not look at the answer
        // again.
        if (over[i] || turns % (1 + (i + end) % 3 * (i + end) % 7 * 30) == 0) trainers[i].turn();
      }
      return std::ranges::all_of(over, std::identity());
    });
    CHECK(trainers[0].values() == trainers[1].values());
    CHECK(trainers[2].values() == trainers[3].values());
    CHECK(trainers[0].values()[0][0] == Approx(trainers[2].values()[0][0]).epsilon(1e-3));
  }
}

TEST_CASE("one of a node's clients that trains once more, unseen, and finishes again is not told of the end before") {
  const std::size_t again = GENERATE(0, 1);
  std::array<Trainer, 3> trainers{{{1, {}}, {3, {}}, {-2, {}}}};
  Daemon first;
  Daemon second(false, &first);
  for (std::size_t i = 0; i < trainers.size(); ++i)
    (i < 2 ? first : second).attach(trainers[i]);
  const auto run_until_all = [&](auto holds) {
    first.run_until([&] {
      for (Trainer& trainer : trainers)
        trainer.turn();
      return std::ranges::all_of(trainers, holds);
    });
  };
  run_until_all([](Trainer& trainer) { return trainer.running(); });
  const auto answer_to = [](Trainer& trainer) {
    return layout::FinishAnswer::unpack(trainer.memory().header().finish_answer.load());
  };
  for (Trainer& trainer : trainers) {
    trainer.may_train = false;
    trainer.memory().header().finishing = 1;
  }
  run_until_all([&](Trainer& trainer) { return answer_to(trainer).agreed; });
  REQUIRE(answer_to(trainers[again]).members == 2);
  trainers[again].may_train = true;
  for (int n = 0; n < 3; ++n)
    trainers[again].turn();
  trainers[again].may_train = false;
  trainers[again].memory().header().finishing = 2;
  first.run_until([&] {
    for (Trainer& trainer : trainers)
      trainer.turn();
    return answer_to(trainers[again]).number == 2 && answer_to(trainers[again]).agreed;
  });
  CHECK(answer_to(trainers[again]).members == 1);  // the other node has ended without this training
}

TEST_CASE("one that trains on when another has saved and gone is the one to save at its own end") {
  Trainer first(1, std::chrono::microseconds(0));
  Trainer second(1, std::chrono::microseconds(0));
  Daemon daemon;
  const auto session = daemon.attach(first);
  daemon.attach(second);
  const auto answer_to = [](const Trainer& trainer) {
    return layout::FinishAnswer::unpack(trainer.memory().header().finish_answer.load());
  };
  daemon.run_until([&] {
    first.turn();
    second.turn();
    return first.running() && second.running();
  });
  first.may_train = second.may_train = false;
  first.memory().header().finishing = second.memory().header().finishing = 1;
  daemon.run_until([&] {
    first.turn();
    second.turn();
    return answer_to(first).agreed && answer_to(second).agreed;
  });
  CHECK(answer_to(first).saver);
  CHECK_FALSE(answer_to(second).saver);
  daemon.detach(session);
  second.memory().header().finishing = 0;
  second.may_train = true;
  const std::uint64_t until = second.memory().header().clock.load() + 5;
  daemon.run_until([&] {
    second.turn();
    return second.memory().header().clock.load() >= until;
  });
  second.may_train = false;
  second.memory().header().finishing = 2;
  daemon.run_until([&] {
    second.turn();
    return answer_to(second).number == 2 && answer_to(second).agreed;
  });
  CHECK(answer_to(second).saver);
}

namespace {

/// Two clients. The second trains, and the daemon has given it every fragment again.
struct OneTrains {
  OneTrains() {
    rests.may_train = false;
    daemon.attach(rests);
    session = daemon.attach(trains);
    daemon.run_until([&] {
      rests.turn();
      trains.turn();
      return trains.memory().header().clock.load() > 2;
    });
    daemon.run_until([&] {
      rests.turn();
      return trains.all_due();
    });
  }
  [[nodiscard]] float expected() const {
    return 1 + static_cast<float>(trains.memory().header().clock.load()) * step / 2;
  }

  Trainer rests{1, std::chrono::microseconds(0)};
  Trainer trains{1, std::chrono::microseconds(0)};
  Daemon daemon;
  std::shared_ptr<ClientSession> session;
};

}  // namespace

TEST_CASE("what a client of a job publishes before it goes stays, also if the daemon hears first that it is gone") {
  OneTrains job;
  job.trains.turn();
  job.daemon.detach(job.session);
  job.daemon.run_until(
      [&] {
        job.rests.turn();
        return job.rests.published() == job.expected();
      },
      [&] { return std::to_string(job.rests.published()) + " and not " + std::to_string(job.expected()); });
}

TEST_CASE("what a client of a job publishes while its session is broken counts once when it is back") {
  OneTrains job;
  job.daemon.detach(job.session);
  job.trains.turn();
  job.trains.may_train = false;
  job.daemon.run_until([&] { return job.daemon.try_attach_again(job.trains).has_value(); });
  int still = 0;
  job.daemon.run_until(
      [&] {
        job.rests.turn();
        job.trains.turn();
        const bool exact = job.rests.published() == job.expected() && job.trains.published() == job.expected();
        still = exact ? still + 1 : 0;
        return still > 100;
      },
      [&] { return std::to_string(job.rests.published()) + " and not " + std::to_string(job.expected()); });
}

namespace {

/// Stores the client's place in its data, as a program does.
void set_cursor(const Trainer& trainer, char value) {
  const std::byte cursor{static_cast<unsigned char>(value)};
  layout::store_slot(trainer.memory().header().own_cursor, trainer.memory().base + layout::cursors_offset,
                     {&cursor, 1});
}
/// Attaches the job's first client, which makes all its steps.
void train_first(Daemon& daemon, Trainer& trainer) {
  daemon.attach(trainer);
  daemon.run_until([&] {
    trainer.turn();
    return trainer.trained();
  });
}
char cursor_given(const Trainer& trainer) {
  const auto cursor = layout::load_slot(trainer.memory().header().job_cursor,
                                        trainer.memory().base + layout::cursors_offset + 2 * layout::slot_bytes);
  return cursor.empty() ? ' ' : static_cast<char>(cursor[0]);
}

}  // namespace

TEST_CASE("a client that comes to a job has the job's clock, and the cursor of the client that has trained most") {
  Daemon daemon;
  Trainer furthest(1, std::chrono::microseconds(0));
  Trainer second(1, std::chrono::microseconds(0));
  Trainer late(9, std::chrono::microseconds(0));
  train_first(daemon, furthest);
  daemon.attach(second);
  set_cursor(furthest, 'f');
  const std::uint64_t own = 7;  // samples trained alone, on a model that it gives up
  late.memory().header().clock = own;
  daemon.attach(late);
  late.may_train = second.may_train = false;
  daemon.run_until([&] {
    for (Trainer* trainer : {&furthest, &second, &late})
      trainer->turn();
    if (second.running()) set_cursor(second, 's');
    return second.running() && late.running();
  });
  CHECK(late.memory().header().clock_base + own == daemon.status().clock);
  Trainer last(9, std::chrono::microseconds(0));
  last.may_train = false;
  daemon.attach(last);
  daemon.run_until([&] {
    for (Trainer* trainer : {&furthest, &second, &late, &last})
      trainer->turn();
    return last.running();
  });
  CHECK(cursor_given(last) == 'f');
}

TEST_CASE("the cursor that a client set before it took the job's model over is nobody's place in the data") {
  Daemon daemon;
  Trainer first(1, std::chrono::microseconds(0));
  Trainer late(9, std::chrono::microseconds(0));
  Trainer last(9, std::chrono::microseconds(0));
  train_first(daemon, first);
  set_cursor(first, 'f');
  set_cursor(late, 'o');  // belongs to a model that it gives up
  daemon.attach(late);
  daemon.run_until([&] {
    first.turn();
    late.turn();
    return late.memory().header().clock.load() > 2;  // it has trained more than the first
  });
  last.may_train = false;
  daemon.attach(last);
  daemon.run_until([&] {
    for (Trainer* trainer : {&first, &late, &last})
      trainer->turn();
    return last.running();
  });
  CHECK(cursor_given(last) == 'f');
}

TEST_CASE("a client that has not taken the whole model over joins again at the next daemon") {
  Daemon daemon;
  Trainer first(1, std::chrono::microseconds(0));
  Trainer late(9, std::chrono::microseconds(0));
  train_first(daemon, first);
  daemon.attach(late);
  daemon.job().end();
  const auto state_of = [](const Trainer& trainer) {
    return static_cast<layout::RunState>(trainer.memory().header().state.load());
  };
  CHECK(state_of(first) == layout::RunState::detached);
  CHECK(state_of(late) == layout::RunState::joining);
}

TEST_CASE("a daemon that ends while its clients come back leaves word of all of them") {
  std::array<Trainer, 3> trainers{
      {{1, std::chrono::microseconds(50)}, {1, std::chrono::microseconds(50)}, {1, std::chrono::microseconds(50)}}};
  {
    Daemon daemon;
    for (Trainer& trainer : trainers) {
      daemon.attach(trainer);
      trainer.start();
    }
    daemon.run_until(
        [&] { return std::all_of(trainers.begin(), trainers.end(), [](auto& t) { return t.running(); }); });
  }
  Daemon successor(true);
  successor.attach(trainers[1]);
  successor.attach(trainers[2]);
  int turns = 0;
  successor.run_until([&] { return ++turns > 10; });
  for (const Trainer& trainer : trainers)
    CHECK(trainer.memory().header().place.load() >> 32 == 3);
}

TEST_CASE("a node that joins with two clients has the clock of the model that it took over") {
  Trainer donor(1, std::chrono::microseconds(0));
  Trainer first(5, std::chrono::microseconds(50));
  Trainer second(7, std::chrono::microseconds(50));
  Daemon founder;
  Daemon joiner(false, &founder);
  founder.attach(donor);
  donor.start();
  founder.run_until([&] { return donor.trained() && founder.status().clock == test::steps; });
  first.may_train = second.may_train = false;
  joiner.attach(first);
  joiner.attach(second);
  first.start();
  second.start();
  founder.run_until([&] { return first.running() && second.running(); });
  CHECK(joiner.status().clock == test::steps);
  CHECK(second.memory().header().clock_base.load() == test::steps);
}
