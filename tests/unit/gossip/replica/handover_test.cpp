// How many exchanges a leaver makes until it has handed over enough.

#include "gossip/replica/handover.hpp"

#include "catch.hpp"
#include "node_id.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

using gossamer::test::node_id;

}  // namespace

TEST_CASE("a leaver's share of the mean is what it may keep", "[handover]") {
  struct Row {
    std::size_t replicas;
    int shift;
    std::size_t exchanges;  // exchanges until it is enough
  };
  const Row row = GENERATE(Row{1, 1, 0}, Row{2, 1, 1}, Row{3, 1, 2}, Row{4, 1, 2}, Row{5, 1, 3}, Row{8, 1, 3},
                           Row{9, 1, 4}, Row{2, 2, 3}, Row{4, 2, 5}, Row{1'000'000, 1, Handover::max_exchanges});
  CAPTURE(row.replicas, row.shift);
  Handover handover;
  while (!handover.over(row.replicas))
    handover.exchanged(node_id(static_cast<std::uint8_t>(handover.exchanges())), row.shift);
  CHECK(handover.exchanges() == row.exchanges);
  CHECK(handover.kept() == std::pow(1 - std::ldexp(1.0, -row.shift), row.exchanges));
}

TEST_CASE("the mean of those that stay is what the mean of all was", "[handover]") {
  for (const std::size_t replicas : {2, 4, 8, 16}) {
    CAPTURE(replicas);
    std::vector<double> models(replicas, 0.0);
    models[0] = 1;
    Handover handover;
    for (std::size_t partner = 1; !handover.over(replicas); ++partner) {
      REQUIRE(partner < replicas);
      models[0] = models[partner] = (models[0] + models[partner]) / 2;
      handover.exchanged(node_id(static_cast<std::uint8_t>(partner)), 1);
    }
    double others = 0;
    for (std::size_t i = 1; i < replicas; ++i)
      others += models[i];
    CHECK(others / static_cast<double>(replicas - 1) == Approx(1.0 / static_cast<double>(replicas)));
  }
}

TEST_CASE("a partner that took its half is not asked again, one that took less is", "[handover]") {
  Handover handover;
  handover.exchanged(node_id(1), 1);
  handover.exchanged(node_id(2), 2);
  CHECK_FALSE(handover.may_ask(node_id(1)));
  CHECK(handover.may_ask(node_id(2)));
  CHECK(handover.may_ask(node_id(3)));
  CHECK_FALSE(handover.over(8));
  handover.give_up();
  CHECK(handover.over(8));
}
