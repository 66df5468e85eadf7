#include "tools/sim/network.hpp"

#include "catch.hpp"

#include "tools/sim/draw.hpp"

namespace gossamer::sim {
namespace {

TEST_CASE("Events happen by time and then in the order in which they were scheduled") {
  Schedule schedule;
  std::vector<int> order;
  schedule.at(20, [&] { order.push_back(3); });
  schedule.at(10, [&] {
    order.push_back(1);
    schedule.after(10, [&] { order.push_back(4); });
  });
  schedule.at(10, [&] { order.push_back(2); });
  schedule.run_until(19);
  CHECK(order == std::vector<int>{1, 2});
  CHECK(schedule.now_us() == 19);
  schedule.run_until(30);
  CHECK(order == std::vector<int>{1, 2, 3, 4});
  CHECK(schedule.events() == 4);
}

TEST_CASE("A message takes its turn on the uplink, then the latency") {
  Schedule schedule;
  Network network(schedule, gossip::Random(1), 2, {.latency_us = 1'000});
  network.set_node_rate(0, 1e6, 0);
  std::vector<TimeUs> arrivals;
  for (int i = 0; i < 3; ++i)
    network.send(0, 1, 2'000, [&] { arrivals.push_back(schedule.now_us()); });
  schedule.run_until(us_per_s);
  CHECK(arrivals == std::vector<TimeUs>{3'000, 5'000, 7'000});
  CHECK(network.bytes_sent(0) == 6'000);
}

TEST_CASE("Loss and repetition have the probabilities asked for") {
  Schedule schedule;
  Network network(schedule, gossip::Random(2), 2, {.loss = 0.2, .duplicate = 0.1});
  int arrived = 0;
  for (int i = 0; i < 20'000; ++i)
    network.send(0, 1, 10, [&] { ++arrived; });
  schedule.run_until(us_per_s);
  CHECK(arrived == Approx(20'000 * 0.8 * 1.1).epsilon(0.02));
  CHECK(network.lost() == Approx(4'000).epsilon(0.05));
}

TEST_CASE("A partition stops what is under way and what is sent, until it heals") {
  Schedule schedule;
  Network network(schedule, gossip::Random(3), 3, {.latency_us = 100});
  int arrived = 0;
  network.send(0, 1, 1, [&] { ++arrived; });
  network.partition({0, 1, 0});
  network.send(0, 1, 1, [&] { ++arrived; });
  network.send(0, 2, 1, [&] { ++arrived; });
  schedule.run_until(1'000);
  CHECK(arrived == 1);
  network.heal();
  network.send(0, 1, 1, [&] { ++arrived; });
  schedule.run_until(2'000);
  CHECK(arrived == 2);
}

TEST_CASE("Nobody dials a node behind a NAT") {
  Schedule schedule;
  Network network(schedule, gossip::Random(4), 2, {});
  network.set_behind_nat(1, true);
  CHECK_FALSE(network.can_dial(0, 1));
  CHECK(network.can_dial(1, 0));
}

TEST_CASE("Draws have the moments of their distributions") {
  gossip::Random random(5);
  double sum = 0;
  double square = 0;
  double waits = 0;
  constexpr int count = 200'000;
  for (int i = 0; i < count; ++i) {
    const double value = normal(random);
    sum += value;
    square += value * value;
    waits += exponential(random, 3.0);
  }
  CHECK(sum / count == Approx(0).margin(0.01));
  CHECK(square / count == Approx(1).epsilon(0.02));
  CHECK(waits / count == Approx(3).epsilon(0.02));
}

}  // namespace
}  // namespace gossamer::sim
