// The numbers of a node's exchanges, and what it says of them.

#include "gossip/replica/exchange_book.hpp"
#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

TEST_CASE("exchanges of another life, whose numbers were left out, are not this one's", "[exchange]") {
  ExchangeCounter counter{100};
  ExchangeBook book(counter, us_per_s);
  const std::uint64_t before = book.take_counter();
  CHECK(book.outcome_of(before) == Outcome::taken);

  counter.skip_to(1000);
  const std::uint64_t after = book.take_counter();
  CHECK(after == 1000);
  CHECK(book.outcome_of(before) == Outcome::taken);
  CHECK(book.outcome_of(after) == Outcome::taken);
  CHECK(book.outcome_of(before + 1) == Outcome::unknown);
  CHECK(book.outcome_of(after - 1) == Outcome::unknown);
  CHECK(book.outcome_of(after + 1) == Outcome::unknown);

  counter.skip_to(500);  // never backwards
  CHECK(counter.next() == after + 1);

  counter.skip_to(5000);  // what was given between two gaps is not told apart from them
  CHECK(book.outcome_of(before) == Outcome::taken);
  CHECK(book.outcome_of(after) == Outcome::unknown);
  CHECK(book.outcome_of(book.take_counter()) == Outcome::taken);
}
