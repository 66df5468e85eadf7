// The weights that exchanges give, by tables, and the budget of overlapping ones.

#include <cmath>

#include "catch.hpp"
#include "gossip/exchange/mixing.hpp"
#include "gossip/random.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

TEST_CASE("old state weighs less", "[mixing]") {
  struct Row {
    std::uint64_t samples, cadence;
    int shift;
  };
  const Row row = GENERATE(values<Row>({
      {0, 0, 0},
      {1'000'000, 0, 0},  // cadence not known yet
      {0, 10, 0},
      {40, 10, 0},
      {41, 10, 1},
      {160, 10, 1},
      {161, 10, 2},
      {1'000'000, 10, 2},
  }));
  CAPTURE(row.samples, row.cadence);
  CHECK(age_shift({.samples = row.samples, .cadence = row.cadence}) == row.shift);
}

TEST_CASE("noisy differences weigh less", "[mixing]") {
  struct Row {
    double noise, square, normal;
    int shift;
  };
  const Row row = GENERATE(values<Row>({
      {0, 0, 0, 0},
      {5, 0, 0, 0},     // nothing seen: nothing will be moved
      {0, 1, 0, 0},     // no noise
      {0.25, 1, 0, 0},  // v = 1/3
      {0.26, 1, 0, 1},
      {0.625, 1, 0, 1},  // v = 5/3
      {0.63, 1, 0, 2},
      {0.8125, 1, 0, 2},  // v = 13/3
      {0.82, 1, 0, 3},
      {1, 1, 0, 3},     // all noise, as far as can be told
      {1, 1, 0.75, 0},  // but normal differences of this mean have that much signal
      {1, 1, 0.6, 1},
      {1, 1, 2, 0},  // more signal than was seen
      {3e-30, 4e-30, 3.1e-30, 0},
      {3.9e30, 4e30, 0, 3},
  }));
  CAPTURE(row.noise, row.square, row.normal);
  CHECK(noise_shift(row.noise, row.square, row.normal) == row.shift);
}

TEST_CASE("the shift for noise leaves least distance", "[mixing]") {
  // f(a) = (1 − 2w)² + 4w²·v at w = 2^-a, signal 1, variance v.
  const auto left = [](int a, double v) {
    const double w = std::ldexp(1.0, -a);
    return (1 - 2 * w) * (1 - 2 * w) + 4 * w * w * v;
  };
  for (double v = 0.05; v < 9; v += 0.1) {
    const int best = 1 + noise_shift(v, 1 + v, 0);
    CAPTURE(v, best);
    for (int a = 1; a <= 4; ++a)
      CHECK(left(best, v) <= left(a, v) + 1e-12);
  }
}

TEST_CASE("a budget of 1: half to the own request, the rest in halves", "[mixing]") {
  MixingBudget budget(1.0F);
  CHECK_FALSE(budget.own_under_way());
  // Without an own request, each answer may take half: the fragment is held in between.
  for (int i = 0; i < 3; ++i) {
    CHECK(budget.answer_shift() == 1);
    budget.answered(1);
  }
  CHECK(budget.begin_own() == 1);
  CHECK(budget.own_under_way());
  for (const int shift : {2, 3, 4, 5}) {
    CHECK(budget.answer_shift() == shift);
    budget.answered(shift);
  }
  CHECK_FALSE(budget.answer_shift().has_value());
  budget.end_own();
  CHECK_FALSE(budget.own_under_way());
  CHECK(budget.answer_shift() == 1);
}

TEST_CASE("a budget of one half", "[mixing]") {
  MixingBudget budget(0.5F);
  CHECK(budget.answer_shift() == 2);
  CHECK(budget.begin_own() == 2);
  for (const int shift : {3, 4, 5}) {
    CHECK(budget.answer_shift() == shift);
    budget.answered(shift);
  }
  CHECK_FALSE(budget.answer_shift().has_value());
}

TEST_CASE("a request that crosses ours may take what ours will not use", "[mixing]") {
  MixingBudget budget(1.0F);
  budget.begin_own();
  CHECK(budget.answer_shift(true) == 1);
  CHECK(budget.answer_shift(false) == 2);
  budget.answered(1);
  CHECK_FALSE(budget.answer_shift(false).has_value());
}

TEST_CASE("gentler answers leave more for others", "[mixing]") {
  MixingBudget budget(1.0F);
  budget.begin_own();
  budget.answered(6);                 // its noise or age made it gentler than allowed
  CHECK(budget.answer_shift() == 3);  // (½ − 1/64) / 2 is a little under ¼
  budget.answered(12);
  CHECK(budget.answer_shift() == 3);
}

TEST_CASE("overlapping exchanges never exceed the budget", "[mixing]") {
  const float limit = GENERATE(1.0F, 0.5F, 0.75F, 0.3F);
  CAPTURE(limit);
  Random random(7);
  for (int round = 0; round < 1000; ++round) {
    MixingBudget budget(limit);
    float used = std::ldexp(1.0F, -budget.begin_own());
    for (int i = 0; i < 100; ++i) {
      const auto shift = budget.answer_shift();
      if (!shift) break;
      REQUIRE(*shift <= weakest_shift);
      const int gentler = *shift + static_cast<int>(random.below(3));
      budget.answered(gentler);
      used += std::ldexp(1.0F, -gentler);
    }
    REQUIRE(used <= limit);
  }
}
TEST_CASE("the end with more samples moves less, by the ratio of both", "[mixing]") {
  struct Row {
    double initiator, responder, chance;
    int of_initiator, of_responder;
  };
  const Row row = GENERATE(values<Row>({{8, 8, 0.99, 0, 0},
                                        {0, 0, 0, 0, 0},
                                        {16, 4, 0.5, 2, 0},
                                        {4, 16, 0.5, 0, 2},
                                        {6, 8, 0.49, 0, 0},
                                        {6, 8, 0.51, 0, 1},
                                        {1e9, 1, 0.5, most_weight_shift, 0},
                                        {0, 3, 0.5, 0, max_shift_bound},
                                        {3, 0, 0.5, max_shift_bound, 0}}));
  CAPTURE(row.initiator, row.responder, row.chance);
  const WeightShifts shifts = weight_shifts(row.initiator, row.responder, row.chance);
  CHECK(shifts.initiator == row.of_initiator);
  CHECK(shifts.responder == row.of_responder);
}

TEST_CASE("weights are right on average, whatever the ratio", "[mixing]") {
  Random random(8);
  const double ratio = GENERATE(0.9, 0.7, 0.5, 0.3, 0.11, 0.03);
  CAPTURE(ratio);
  constexpr int draws = 20'000;
  double sum = 0;
  for (int i = 0; i < draws; ++i)
    sum += std::ldexp(1.0, -weight_shifts(ratio, 1, random.uniform()).responder);
  CHECK(sum / draws == Approx(ratio).epsilon(0.02));
}
