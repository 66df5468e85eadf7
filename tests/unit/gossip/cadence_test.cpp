// Rates that hold: bytes a second over time, and a period that keeps gossip to its share.

#include "gossip/cadence.hpp"

#include "catch.hpp"
#include "gossip/byte_budget.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

TEST_CASE("a byte budget holds its rate, whatever the size of a message", "[cadence]") {
  const std::size_t size = GENERATE(100, 10'000, 3'000'000);
  CAPTURE(size);
  constexpr double rate = 1e6;
  ByteBudget budget(rate);
  double sent = 0;
  constexpr TimeUs end_us = 60 * us_per_s;
  for (TimeUs now_us = 0; now_us < end_us; now_us += 50) {
    if (!budget.open(now_us)) continue;
    budget.spend(size, now_us);
    sent += static_cast<double>(size);
  }
  const double most = rate * 60 + rate * 0.25 + static_cast<double>(size);
  CHECK(sent <= most);
  CHECK(sent >= rate * 60 * 0.95);
}

TEST_CASE("a byte budget saves up a quarter of a second and no more", "[cadence]") {
  ByteBudget budget(1e6);
  std::size_t sent = 0;
  while (budget.open(10 * us_per_s)) {
    budget.spend(1000, 10 * us_per_s);
    sent += 1000;
  }
  CHECK(sent == 251'000);
}

TEST_CASE("a byte budget says when it opens, and saves up what it is told", "[cadence]") {
  ByteBudget budget(1e6, 20 * us_per_ms);
  CHECK(budget.opens_at(us_per_s) == us_per_s);
  budget.spend(120'000, us_per_s);
  const TimeUs opens = budget.opens_at(us_per_s);
  CHECK(opens == Approx(1.1 * us_per_s).margin(2));
  CHECK_FALSE(budget.open(opens - 10));
  CHECK(budget.open(opens));
  CHECK(ByteBudget().opens_at(7) == 7);
}

TEST_CASE("without a rate a byte budget is always open", "[cadence]") {
  ByteBudget budget;
  budget.spend(1'000'000'000, 0);
  CHECK(budget.open(0));
}

TEST_CASE("the cadence settles where gossip takes its share, from either side", "[cadence]") {
  const TimeUs begin_us = GENERATE(1'000, 50'000, 20'000'000);
  const double cost_us = GENERATE(10.0, 1'000.0, 30'000.0);  // of what one period's exchanges take
  CAPTURE(begin_us, cost_us);
  constexpr double allowed = 0.02;
  Cadence cadence(begin_us);
  cadence.set_least(1'000);
  for (int i = 0; i < 60; ++i)
    cadence.adjust(cost_us / static_cast<double>(cadence.period_us()) / allowed);
  const double ideal_us = std::max(1'000.0, cost_us / allowed);
  CHECK(static_cast<double>(cadence.period_us()) >= 0.99 * ideal_us);
  CHECK(static_cast<double>(cadence.period_us()) <= 1.15 * ideal_us);
}

TEST_CASE("the cadence is lengthened eightfold and halved at most, and stays in its bounds", "[cadence]") {
  Cadence cadence(50'000);
  cadence.adjust(1e9);
  CHECK(cadence.period_us() == 400'000);
  cadence.adjust(0);
  CHECK(cadence.period_us() == 200'000);
  for (int i = 0; i < 40; ++i)
    cadence.adjust(1e9);
  CHECK(cadence.period_us() == Cadence::most_us);
  for (int i = 0; i < 40; ++i)
    cadence.adjust(0);
  CHECK(cadence.period_us() == 50'000);
}

TEST_CASE("a cadence without a least period comes back to it", "[cadence]") {
  Cadence cadence(0);
  cadence.adjust(100);
  CHECK(cadence.period_us() > 0);
  for (int i = 0; i < 40; ++i)
    cadence.adjust(0);
  CHECK(cadence.period_us() == 0);
}
