// After a daemon has died, its successor reads in receipts which publications it still has to take in.

#include "gossip/group/receipts.hpp"

#include <array>

#include "catch.hpp"

using namespace gossamer::gossip;

namespace {

using Kind = Standing::Kind;

}  // namespace

TEST_CASE("what a client published that comes back later is lacking unless a copy that is there contains it") {
  const std::array copy{Gap{.newest = 2, .begun = 3}, Gap{.newest = 7, .begun = 20}};
  CHECK(lacks(copy, {Kind::moved, 5}));
  CHECK(lacks(copy, {Kind::moved, 5, 8}));  // the copy was never given out, or to no client that was there
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 7}));
  CHECK(lacks(copy, {Kind::moved, 1, 3}));         // lost with a daemon before the last one
  CHECK_FALSE(lacks(copy, {Kind::moved, 5, 21}));  // this daemon's copies from 21 on contain it
  CHECK_FALSE(lacks(copy, {Kind::holds, 5}));
  CHECK_FALSE(lacks(copy, {Kind::alone, 5}));
  CHECK_FALSE(lacks(copy, {}));
}
