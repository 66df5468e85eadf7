// Sums among a node's GPUs: ranks that join, die and hang, under virtual time, with fake communicators.

#include "daemon/device/reducer.hpp"

#include <map>

#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::device;

namespace {

using State = Collective::State;

/// How the communicators behave, and what became of them.
struct Play {
  bool makes = true;  // a communicator is ready when next asked for
  bool make_fails = false;
  bool reduces = true;  // a sum is there when asked for the next time
  bool reduce_fails = false;
  int alive = 0;
  std::vector<std::vector<Rank>> made = {};
};

class FakeCollective final : public Collective {
 public:
  explicit FakeCollective(Play& play) : play_(play) { ++play_.alive; }
  ~FakeCollective() override { --play_.alive; }

  State progress() override {
    if (!came_about_) {
      if (play_.make_fails) return State::failed;
      came_about_ = play_.makes;
      return came_about_ ? State::done : State::under_way;
    }
    if (values_.empty()) return State::done;
    if (play_.reduce_fails) return State::failed;
    if (!play_.reduces) return State::under_way;
    for (std::size_t e = 0; e < elements_; ++e) {
      float total = 0;
      for (const float* values : values_)
        total += values[e];
      for (float* values : values_)
        values[e] = total;
    }
    values_.clear();
    return State::done;
  }
  State reduce(std::span<float* const> values, std::size_t elements) override {
    REQUIRE(came_about_);
    REQUIRE(values_.empty());
    values_.assign(values.begin(), values.end());
    elements_ = elements;
    return State::under_way;
  }
  std::string why() const override { return "fake"; }

 private:
  Play& play_;
  bool came_about_ = false;
  std::vector<float*> values_;
  std::size_t elements_ = 0;
};

class FakeCollectives final : public Collectives {
 public:
  explicit FakeCollectives(Play& play) : play_(play) {}
  std::unique_ptr<Collective> make(std::span<const Rank> ranks) override {
    play_.made.emplace_back(ranks.begin(), ranks.end());
    return std::make_unique<FakeCollective>(play_);
  }

 private:
  Play& play_;
};

struct Node {
  Play play;
  FakeCollectives collectives{play};
  ReducerLimits limits;
  LocalReducer reducer{collectives, limits};
  TimeUs now_us = 0;
  std::map<Rank, std::vector<float>> values = {};

  LocalReducer::Reduced tick(TimeUs by_us = us_per_ms) { return reducer.tick(now_us += by_us); }
  void settle() {
    for (int i = 0; i < 3; ++i)
      (void)tick();
  }
  std::vector<Rank> ready() const { return {reducer.ready().begin(), reducer.ready().end()}; }
  /// Begins a sum in which rank r has the number 10^r.
  void reduce() {
    std::vector<float*> pointers;
    for (const Rank rank : ready()) {
      float number = 1;
      for (Rank r = 0; r < rank; ++r)
        number *= 10;
      pointers.push_back((values[rank] = {number, 2 * number}).data());
    }
    reducer.reduce(pointers, 2, now_us);
  }
};

using Ranks = std::vector<Rank>;
using Reduced = LocalReducer::Reduced;

}  // namespace

TEST_CASE("ranks that are there are summed over", "[reducer]") {
  Node node;
  CHECK(node.ready().empty());
  for (const Rank rank : {2, 0, 1})
    REQUIRE(node.reducer.add(rank));
  node.settle();
  REQUIRE(node.ready() == Ranks{0, 1, 2});
  node.reduce();
  CHECK(node.ready().empty());  // only one sum at a time
  CHECK(node.tick() == Reduced::done);
  for (const Rank rank : {0, 1, 2})
    CHECK(node.values[rank] == std::vector<float>{111, 222});
  CHECK(node.ready() == Ranks{0, 1, 2});
  CHECK(node.tick() == Reduced::no);
  CHECK(node.reducer.counters().reductions == 1);
}

TEST_CASE("one rank alone is summed over as well", "[reducer]") {
  Node node;
  REQUIRE(node.reducer.add(3));
  node.settle();
  REQUIRE(node.ready() == Ranks{3});
  node.reduce();
  CHECK(node.tick() == Reduced::done);
  CHECK(node.values[3] == std::vector<float>{1000, 2000});
}

TEST_CASE("a rank that joins does not stop the others", "[reducer]") {
  Node node;
  REQUIRE(node.reducer.add(0));
  REQUIRE(node.reducer.add(1));
  node.settle();
  node.play.makes = false;  // the next one takes its time
  REQUIRE(node.reducer.add(2));
  node.settle();
  CHECK(node.play.made.back() == Ranks{0, 1, 2});
  for (int i = 0; i < 5; ++i) {
    REQUIRE(node.ready() == Ranks{0, 1});
    node.reduce();
    CHECK(node.tick() == Reduced::done);
    CHECK(node.values[0][0] == 11);
  }
  // The new communicator becomes ready during a sum. The sum ends first.
  node.play.reduces = false;
  node.reduce();
  node.play.makes = true;
  node.settle();
  CHECK(node.reducer.reducing());
  node.play.reduces = true;
  CHECK(node.tick() == Reduced::done);
  CHECK(node.values[0][0] == 11);
  node.settle();
  CHECK(node.ready() == Ranks{0, 1, 2});
  CHECK(node.play.alive == 1);
}

TEST_CASE("ranks that keep joining do not keep the others from coming together", "[reducer]") {
  Node node;
  REQUIRE(node.reducer.add(0));
  (void)node.tick();
  for (Rank rank = 1; rank < 10; ++rank) {
    REQUIRE(node.reducer.add(rank));
    (void)node.tick();
    CHECK_FALSE(node.ready().empty());
  }
  node.settle();
  CHECK(node.ready().size() == 10);
}

TEST_CASE("a rank that dies breaks a sum off, and the others come together again", "[reducer]") {
  Node node;
  for (const Rank rank : {0, 1, 2})
    REQUIRE(node.reducer.add(rank));
  node.settle();
  node.play.reduces = false;
  node.reduce();
  CHECK(node.tick() == Reduced::no);
  node.reducer.remove(1);
  CHECK(node.play.alive == 0);  // abandoned at once
  CHECK(node.tick() == Reduced::failed);
  CHECK(node.tick() == Reduced::no);
  node.play.reduces = true;
  node.settle();
  REQUIRE(node.ready() == Ranks{0, 2});
  node.reduce();
  CHECK(node.tick() == Reduced::done);
  CHECK(node.values[0][0] == 101);
  CHECK(node.reducer.counters().reduce_failures == 1);
}

TEST_CASE("a rank that dies while a communicator is made is not waited for", "[reducer]") {
  Node node;
  node.play.makes = false;
  for (const Rank rank : {0, 1})
    REQUIRE(node.reducer.add(rank));
  node.settle();
  node.reducer.remove(1);
  CHECK(node.play.alive == 0);
  node.play.makes = true;
  node.settle();
  CHECK(node.ready() == Ranks{0});
}

TEST_CASE("a sum that hangs is given up in time, and so is a communicator", "[reducer]") {
  Node node;
  for (const Rank rank : {0, 1})
    REQUIRE(node.reducer.add(rank));
  node.settle();
  node.play.reduces = false;
  node.reduce();
  CHECK(node.tick(node.limits.reduce_us - us_per_ms) == Reduced::no);
  CHECK(node.tick(us_per_ms) == Reduced::failed);
  CHECK(node.play.alive == 0);
  CHECK_FALSE(node.reducer.trouble().empty());

  node.play.makes = false;
  (void)node.tick(node.limits.pause_us);
  CHECK(node.play.alive == 1);
  (void)node.tick(node.limits.make_us);
  CHECK(node.play.alive == 0);
  CHECK(node.reducer.counters().make_failures == 1);
}

TEST_CASE("what fails again and again is tried ever more seldom", "[reducer]") {
  Node node;
  node.play.make_fails = true;
  REQUIRE(node.reducer.add(0));
  std::vector<TimeUs> attempts;
  while (node.now_us < 600 * us_per_s) {
    const std::size_t before = node.play.made.size();
    (void)node.tick(100 * us_per_ms);
    if (node.play.made.size() > before) attempts.push_back(node.now_us);
  }
  REQUIRE(attempts.size() > 8);
  CHECK(attempts.size() < 20);
  CHECK(attempts[1] - attempts[0] < 2 * node.limits.pause_us);
  CHECK(attempts.back() - attempts[attempts.size() - 2] >= node.limits.longest_pause_us);
  CHECK(node.play.alive == 0);
  // Once a communicator can be made again, it is made.
  node.play.make_fails = false;
  (void)node.tick(2 * node.limits.longest_pause_us);
  node.settle();
  CHECK(node.ready() == Ranks{0});
}

TEST_CASE("nothing has to be looked after in the pause after a failure", "[reducer]") {
  Node node;
  node.play.make_fails = true;
  REQUIRE(node.reducer.add(0));
  std::size_t ticks = 0;
  for (; node.now_us < 600 * us_per_s; ++ticks)
    (void)node.tick(std::max<TimeUs>(5 * us_per_ms, node.reducer.rests_until_us() - node.now_us));
  CHECK(node.play.made.size() > 8);
  CHECK(ticks <= 2 * node.play.made.size() + 1);
}

TEST_CASE("what is being made is looked after all the time", "[reducer]") {
  Node node;
  node.play.makes = false;
  REQUIRE(node.reducer.add(0));
  node.settle();
  CHECK_FALSE(node.reducer.settled());
  CHECK(node.reducer.rests_until_us() == 0);
}

TEST_CASE("an error of a sum is told, and the communicator made anew", "[reducer]") {
  Node node;
  REQUIRE(node.reducer.add(0));
  REQUIRE(node.reducer.add(1));
  node.settle();
  node.play.reduce_fails = true;
  node.reduce();
  CHECK(node.tick() == Reduced::failed);
  CHECK(node.reducer.trouble() == "fake");
  CHECK(node.ready().empty());
  node.play.reduce_fails = false;
  (void)node.tick(node.limits.pause_us);
  node.settle();
  CHECK(node.ready() == Ranks{0, 1});
}

TEST_CASE("there are at most so many ranks, and those that are unknown do no harm", "[reducer]") {
  Node node;
  for (Rank rank = 0; rank < static_cast<Rank>(LocalReducer::max_ranks); ++rank)
    REQUIRE(node.reducer.add(rank));
  CHECK_FALSE(node.reducer.add(1000));
  CHECK(node.reducer.add(5));
  node.reducer.remove(1000);
  node.settle();
  CHECK(node.ready().size() == LocalReducer::max_ranks);
  for (Rank rank = 0; rank < static_cast<Rank>(LocalReducer::max_ranks); ++rank)
    node.reducer.remove(rank);
  node.settle();
  CHECK(node.ready().empty());
  CHECK(node.play.alive == 0);
}
