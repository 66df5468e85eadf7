// When a fragment counts as settled.

#include "gossip/replica/finishing.hpp"

#include <limits>

#include "catch.hpp"
#include "node_id.hpp"

using namespace gossamer;
using gossip::EndAgreement;
using gossip::finish_tolerance;

namespace {

using gossamer::test::node_id;

}  // namespace

TEST_CASE("a fragment is settled once it agrees with as many as there are, up to three") {
  EndAgreement agreement;
  CHECK(agreement.settled(0));
  CHECK_FALSE(agreement.settled(1));
  agreement.observe(node_id(1), 0, true);
  CHECK(agreement.settled(1));
  agreement.observe(node_id(1), 0, true);  // the same partner again counts once
  CHECK_FALSE(agreement.settled(2));
  agreement.observe(node_id(2), finish_tolerance / 2, true);
  agreement.observe(node_id(3), finish_tolerance / 2, true);
  CHECK(agreement.settled(3));
  CHECK(agreement.settled(1000));
  CHECK(agreement.distance() == finish_tolerance / 2);
}

TEST_CASE("a difference from anyone starts it again, and agreeing with one that still trains does not count") {
  EndAgreement agreement;
  agreement.observe(node_id(1), 0, true);
  agreement.observe(node_id(2), 0, false);
  CHECK_FALSE(agreement.settled(2));
  agreement.observe(node_id(2), finish_tolerance, false);
  CHECK_FALSE(agreement.settled(1));
  for (const double unknown : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    agreement.observe(node_id(1), 0, true);
    CHECK(agreement.has(node_id(1)));
    agreement.observe(node_id(3), unknown, true);
    CHECK_FALSE(agreement.has(node_id(1)));
    CHECK(agreement.agreed_distance() == 0);  // what a program is told if node 3 is gone at the end
  }
}
