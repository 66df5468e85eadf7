// Rates that hold: bytes a second over time, and a period that keeps gossip to its share.

#include "gossip/replica/cadence.hpp"

#include <cmath>

#include "catch.hpp"
#include "gossip/replica/byte_budget.hpp"

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

TEST_CASE("while there is debt, a node begins in turn with answers only", "[cadence]") {
  constexpr std::size_t size = 100'000;
  ByteBudget budget(1e6, 20 * us_per_ms);
  TimeUs now_us = us_per_s;
  // Another node asks again whenever the budget is about to open.
  for (int i = 0; i < 10; ++i) {
    CAPTURE(i);
    budget.spend(size, now_us, ByteBudget::Spent::answer);
    CHECK_FALSE(budget.open(now_us));
    CHECK(budget.may_begin(size, now_us));
    budget.spend(size, now_us, ByteBudget::Spent::request);
    CHECK_FALSE(budget.may_begin(size, now_us));
    now_us = budget.opens_at(now_us) - 10;
  }
  CHECK(budget.may_begin(size, now_us + 20));
  budget.spend(3 * size, now_us + 20, ByteBudget::Spent::answer);
  CHECK_FALSE(budget.may_begin(size, now_us + 20));
}

TEST_CASE("without a rate a byte budget is always open", "[cadence]") {
  ByteBudget budget;
  budget.spend(1'000'000'000, 0);
  CHECK(budget.open(0));
}

TEST_CASE("an exchange costs what the last ones took", "[cadence]") {
  ExchangeCost cost;
  CHECK(cost.us() == 0);
  const auto add = [&](double each_us) {
    cost.add({.exchanges = 4, .follow_ups = 1, .publications = 6, .taken_us = 4 * each_us});
  };
  for (int i = 0; i < 10; ++i)
    add(250);
  CHECK(cost.us() == Approx(250));
  // The cost follows a change in either direction, within about as many exchanges as it remembers.
  const double changed = GENERATE(2'500.0, 25.0);
  for (int i = 0; i < 64; ++i)
    add(changed);
  CHECK(cost.us() == Approx(changed).epsilon(0.05));
  // Without any exchange, nothing is learned.
  cost.add({});
  CHECK(cost.us() == Approx(changed).epsilon(0.05));
}

TEST_CASE("what is done for another purpose does not raise the cost of an exchange without bound", "[cadence]") {
  ExchangeCost cost;
  cost.add({.exchanges = 10, .publications = 10, .taken_us = 1'000});
  for (int i = 0; i < 10'000; ++i)
    cost.add({.publications = 10, .taken_us = 1'000});  // 100 µs for each publication
  CHECK(cost.us() == Approx(200));
  for (int i = 0; i < 50; ++i)
    cost.add({.exchanges = 10, .publications = 10, .taken_us = 1'000});
  CHECK(cost.us() == Approx(100).epsilon(0.01));
}

TEST_CASE("one dear exchange at the beginning does not put the next off for long", "[cadence]") {
  ExchangeCost cost;
  cost.add({.exchanges = 1, .publications = 1, .taken_us = 20'000});
  CHECK(cost.us() == Approx(20'000 / 8));
  for (int i = 0; i < 40; ++i)
    cost.add({.exchanges = 1, .publications = 1, .taken_us = 1'000});
  CHECK(cost.us() == Approx(1'000).epsilon(0.3));
}

TEST_CASE("what follows up on an exchange is part of its cost, with its publications", "[cadence]") {
  ExchangeCost cost;
  for (int i = 0; i < 10; ++i)
    cost.add({.exchanges = 4, .follow_ups = 4, .publications = 12, .taken_us = 1'200});
  CHECK(cost.us() == Approx(300));
}

TEST_CASE("gossip takes its share ten seconds after its cost has changed, down as fast as up", "[cadence]") {
  constexpr double share = 0.02;
  constexpr double fragments = 10;
  // Exchanges that take 50 ms are so rare that ten seconds have only four, too few to learn from.
  const auto [cost_us, factor] = GENERATE(table<double, double>(
      {{50, 0.01}, {50, 0.1}, {50, 10}, {50, 100}, {500, 0.01}, {500, 0.1}, {500, 10}, {5'000, 0.01}, {5'000, 0.1}}));
  const double first_us = cost_us;
  const double changed_us = factor * cost_us;
  CAPTURE(first_us, changed_us);
  Cadence cadence(100);
  ExchangeCost cost;
  TimeUs now_us = 0;
  double debt = 0;  // parts of an exchange; only whole ones are done
  const auto second = [&](double each_us) {
    debt += 2 * fragments * us_per_s / static_cast<double>(cadence.period_us());
    const double done = std::floor(debt);
    debt -= done;
    cost.add({.exchanges = done, .publications = done, .taken_us = done * each_us});
    now_us += us_per_s;
    cadence.adjust(static_cast<std::size_t>(fragments), cost.us(), 0, {.time_share = share}, now_us);
    return 2 * fragments * each_us / static_cast<double>(cadence.period_us());
  };
  for (const double each_us : {first_us, changed_us, first_us}) {
    CAPTURE(each_us);
    for (int i = 0; i < 10; ++i)
      second(each_us);
    for (int i = 0; i < 20; ++i)
      CHECK(second(each_us) == Approx(share).epsilon(0.2));
  }
}

TEST_CASE("the period follows from the cost and the tighter of the shares", "[cadence]") {
  struct Row {
    std::size_t fragments;
    double cost_us, cost_bytes, time_share, bytes_per_s;
    TimeUs period_us;
    Cadence::Limit limit;
  };
  const auto row = GENERATE(values<Row>({
      {10, 0, 0, 0.02, 1e6, 50'000, Cadence::Limit::none},           // nothing is known yet
      {10, 20, 1e3, 0.02, 1e6, 50'000, Cadence::Limit::none},        // 20 ms would do
      {10, 1'000, 1e3, 0.02, 1e6, 1'000'000, Cadence::Limit::time},  // 10 · 1 ms / (2 % / 2)
      {10, 1'000, 1e3, 0, 1e6, 50'000, Cadence::Limit::none},        // no limit
      {10, 1'000, 1e6, 0.02, 3.125e6, 6'400'000, Cadence::Limit::network},
      {10, 1'000, 1e6, 0.02, 0, 1'000'000, Cadence::Limit::time},  // capacity not known
      {1, 1e9, 0, 0.02, 1e6, Cadence::most_us, Cadence::Limit::time},
      {1, 0, 1e12, 0.02, 1e6, Cadence::most_us, Cadence::Limit::network},
  }));
  CAPTURE(row.fragments, row.cost_us, row.cost_bytes);
  Cadence cadence(50'000);
  cadence.adjust(row.fragments, row.cost_us, row.cost_bytes,
                 {.time_share = row.time_share, .bytes_per_s = row.bytes_per_s}, 0);
  CHECK(cadence.period_us() == row.period_us);
  CHECK(cadence.limit() == row.limit);
  cadence.adjust(row.fragments, 0, 0, {.time_share = row.time_share, .bytes_per_s = row.bytes_per_s}, 0);
  CHECK(cadence.period_us() == 50'000);  // a limit that is taken away counts at once
}

TEST_CASE("a training step allows a node to begin two exchanges of each fragment", "[cadence]") {
  Cadence cadence(50'000);
  cadence.adjust(10, 0, 0, {.step_us = 80'000}, 0);
  CHECK(cadence.period_us() == 50'000);
  CHECK(cadence.limit() == Cadence::Limit::none);
  cadence.adjust(10, 0, 0, {.step_us = us_per_s}, 0);
  CHECK(cadence.period_us() == 500'000);
  CHECK(cadence.limit() == Cadence::Limit::step);
  cadence.adjust(10, 1'000, 0, {.time_share = 0.02, .step_us = us_per_s}, 0);
  CHECK(cadence.period_us() == us_per_s);
  CHECK(cadence.limit() == Cadence::Limit::time);
  cadence.adjust(10, 0, 0, {.step_us = 3600 * us_per_s}, 0);
  CHECK(cadence.period_us() == Cadence::most_us);
  cadence.set_least(0, 0);
  cadence.adjust(10, 0, 0, {.step_us = us_per_s}, 0);
  CHECK(cadence.period_us() == 0);  // the user wants no period
}

TEST_CASE("the farther apart replicas are, the shorter is the longest period for the sake of time", "[cadence]") {
  CHECK(Cadence::longest_us(0) == 600.0 * us_per_s);
  CHECK(Cadence::longest_us(0.05) == 600.0 * us_per_s);
  CHECK(Cadence::longest_us(0.1) == 300.0 * us_per_s);
  CHECK(Cadence::longest_us(0.5) == Approx(60.0 * us_per_s));
  CHECK(Cadence::longest_us(1.4) == Approx(60.0 * us_per_s));
  Cadence cadence(50'000);
  cadence.adjust(10, 1e6, 0, {.time_share = 0.02, .distance = 0.5}, 0);
  CHECK(cadence.period_us() == 60 * us_per_s);
  cadence.set_least(90 * us_per_s, 0);  // the wanted period is never shortened
  CHECK(cadence.period_us() == 90 * us_per_s);
}

TEST_CASE("periods are counted as long as they were at the time", "[cadence]") {
  Cadence cadence(60 * us_per_s);
  const double begin = cadence.passed(0);
  CHECK(cadence.passed(30 * us_per_s) - begin == Approx(0.5));
  cadence.set_least(50'000, 30 * us_per_s);
  CHECK(cadence.passed(30 * us_per_s) - begin == Approx(0.5));
  CHECK(cadence.passed(30 * us_per_s + 25'000) - begin == Approx(1));
  cadence.adjust(10, 1'000, 0, {.time_share = 0.02}, 30 * us_per_s + 25'000);
  REQUIRE(cadence.period_us() == us_per_s);
  CHECK(cadence.passed(31 * us_per_s + 25'000) - begin == Approx(2));
}
