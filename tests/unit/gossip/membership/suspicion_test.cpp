#include "gossip/membership/suspicion.hpp"

#include "catch.hpp"
#include "node_id.hpp"

namespace gossamer::gossip {
namespace {

using gossamer::test::node_id;

TEST_CASE("Bounds of a suspicion grow with the logarithm of the cluster") {
  struct Case {
    unsigned mult;
    unsigned max_mult;
    std::size_t nodes;
    TimeUs probe_us;
    SuspicionBounds expected;
  };
  const Case cases[] = {
      // LAN: 4 · max(1, log10 n) · 1 s, and six times that
      {4, 6, 2, 1'000'000, {4'000'000, 24'000'000, 0}},
      {4, 6, 3, 1'000'000, {4'000'000, 24'000'000, 0}},
      {4, 6, 4, 1'000'000, {4'000'000, 24'000'000, 2}},
      {4, 6, 10, 1'000'000, {4'000'000, 24'000'000, 2}},
      {4, 6, 100, 1'000'000, {8'000'000, 48'000'000, 2}},
      {4, 6, 10'000, 1'000'000, {16'000'000, 96'000'000, 2}},
      // WAN: 6 · log10 n · 5 s
      {6, 6, 10, 5'000'000, {30'000'000, 180'000'000, 4}},
      {6, 6, 1'000, 5'000'000, {90'000'000, 540'000'000, 4}},
      // No node could confirm it.
      {1, 6, 100, 1'000'000, {2'000'000, 12'000'000, 0}},
  };
  for (const Case& item : cases) {
    INFO(item.mult << " " << item.nodes);
    CHECK(suspicion_bounds(item.mult, item.max_mult, item.nodes, item.probe_us) == item.expected);
  }
}

TEST_CASE("Confirmations shorten a suspicion from its longest to its shortest") {
  // max − (max − min) · log(C + 1) / log(K + 1), for min 4 s, max 24 s
  struct Case {
    std::size_t wanted;
    std::size_t confirmations;
    double seconds;
  };
  const Case cases[] = {{2, 0, 24},       {2, 1, 11.381},   {2, 2, 4},       {2, 5, 4}, {4, 0, 24},
                        {4, 1, 15.38647}, {4, 2, 10.34788}, {4, 3, 6.77294}, {4, 4, 4}, {0, 0, 4}};
  for (const Case& item : cases) {
    INFO(item.confirmations << " of " << item.wanted);
    const SuspicionBounds bounds{4'000'000, 24'000'000, item.wanted};
    CHECK(static_cast<double>(suspicion_timeout_us(bounds, item.confirmations)) / 1e6 ==
          Approx(item.seconds).epsilon(1e-4));
  }
}

TEST_CASE("A suspicion counts each accuser once and no more than it needs") {
  Suspicion suspicion({4'000'000, 24'000'000, 2}, node_id(1), 1'000'000);
  CHECK(suspicion.deadline_us() == 25'000'000);
  CHECK_FALSE(suspicion.confirm(node_id(1)));
  CHECK(suspicion.confirm(node_id(2)));
  CHECK_FALSE(suspicion.confirm(node_id(2)));
  CHECK(suspicion.confirm(node_id(3)));
  CHECK(suspicion.deadline_us() == 5'000'000);
  CHECK_FALSE(suspicion.confirm(node_id(4)));
  CHECK(suspicion.accusers().size() == 3);
}

TEST_CASE("News is sent a multiple of the logarithm of the cluster") {
  const std::pair<std::size_t, unsigned> cases[] = {{0, 0},  {1, 4},    {9, 4},      {10, 8},
                                                    {99, 8}, {100, 12}, {9'999, 16}, {10'000, 20}};
  for (const auto& [nodes, limit] : cases) {
    INFO(nodes);
    CHECK(retransmission_limit(4, nodes) == limit);
  }
}

TEST_CASE("Local health stays between 0 and 8 and stretches time") {
  LocalHealth health;
  CHECK(health.scale(100) == 100);
  health.change(-1);
  CHECK(health.score() == 0);
  health.change(3);
  CHECK(health.scale(100) == 400);
  health.change(100);
  CHECK(health.score() == 8);
  CHECK(health.scale(100) == 900);
}

}  // namespace
}  // namespace gossamer::gossip
