// What is refused when a limit is reached, with which words, and which limits are warned of before they are reached.

#include "daemon/system/client_ledger.hpp"

#include <unistd.h>

#include "tests/unit/catch.hpp"

using Catch::Matchers::Contains;
using gossamer::daemon::ClientLedger;
using gossamer::daemon::ClientLimits;

namespace {

constexpr std::uint64_t mebibyte = 1u << 20;

}  // namespace

TEST_CASE("nothing is refused or warned of without limits") {
  ClientLedger ledger({.clients = ClientLimits::none});
  for (std::uint64_t i = 0; i < 200; ++i) {
    const ClientLedger::Entry entry{.user = 7, .job = i, .memory_bytes = std::uint64_t{1} << 50};
    REQUIRE_FALSE(ledger.objection(entry));
    ledger.enter(i, entry);
  }
  CHECK(ledger.nearly_used().empty());
}

TEST_CASE("each limit is kept, named with what is used, and given back") {
  struct Case {
    ClientLimits limits;
    ClientLedger::Entry first, second;  ///< `first` fits, and `second` no longer fits beside it
    const char* key;
    const char* used;
  };
  const Case cases[] = {
      {{.clients = 1}, {1, 1, 1}, {2, 2, 1}, "[limits] clients ", "1 clients"},
      {{.clients_per_user = 1}, {1, 1, 1}, {1, 2, 1}, "[limits] clients_per_user", "1 clients of user 1"},
      {{.jobs_per_user = 1}, {1, 1, 1}, {1, 2, 1}, "[limits] jobs_per_user", "1 jobs"},
      {{.memory_bytes = 10 * mebibyte},
       {1, 1, 6 * mebibyte},
       {2, 2, 5 * mebibyte},
       "[limits] memory_mib",
       "5 MiB are needed; 6 MiB of the limit for all clients, 10 MiB, are used"},
      {{.memory_per_user_bytes = 10 * mebibyte},
       {1, 1, 6 * mebibyte},
       {1, 2, 5 * mebibyte},
       "[limits] memory_per_user_mib",
       "6 MiB of the limit for one user"},
      {{.memory_per_client_bytes = 10 * mebibyte},
       {1, 1, 10 * mebibyte},
       {2, 2, 10 * mebibyte + 1},
       "[limits] memory_per_client_mib",
       "11 MiB are needed"},
  };
  for (const Case& c : cases) {
    INFO(c.key);
    ClientLedger ledger(c.limits);
    CHECK_FALSE(ledger.objection(c.first));
    ledger.enter(1, c.first);
    const auto objection = ledger.objection(c.second);
    REQUIRE(objection);
    CHECK_THAT(*objection, Contains(c.key) && Contains(c.used));
    ledger.leave(1);
    const bool too_large = c.second.memory_bytes > c.limits.memory_per_client_bytes;
    CHECK(ledger.objection(c.second).has_value() == too_large);
  }
}

TEST_CASE("the limits of one user are no other user's, and one job may have several clients") {
  ClientLedger ledger({.clients_per_user = 2, .jobs_per_user = 1, .memory_per_user_bytes = 2 * mebibyte});
  ledger.enter(1, {1, 5, mebibyte});
  CHECK_FALSE(ledger.objection({1, 5, mebibyte}));
  CHECK(ledger.objection({1, 6, mebibyte}));
  ledger.enter(2, {1, 5, mebibyte});
  CHECK(ledger.objection({1, 5, 0}));
  CHECK_FALSE(ledger.objection({2, 5, 2 * mebibyte}));
  CHECK(ledger.memory_bytes() == 2 * mebibyte);
}

TEST_CASE("no user keeps the others out, unless the operator says otherwise") {
  const ClientLimits limits{.clients = 4, .jobs = 4, .memory_bytes = 100};
  ClientLedger ledger(limits);
  for (std::uint64_t i = 0; i < 3; ++i)
    ledger.enter(i, {.user = 1'234'567, .job = i, .memory_bytes = 20});
  CHECK(ledger.objection({.user = 1'234'567, .job = 1, .memory_bytes = 1}));
  CHECK_FALSE(ledger.objection({.user = 1'234'568, .job = 1, .memory_bytes = 40}));
  CHECK_FALSE(ledger.objection({.user = 0, .job = 1, .memory_bytes = 40}));
  ClientLedger empty(limits);
  CHECK(empty.objection({.user = 1'234'567, .job = 1, .memory_bytes = 76}));
  CHECK_FALSE(empty.objection({.user = 0, .job = 1, .memory_bytes = 100}));
  CHECK_FALSE(empty.objection({.user = ::geteuid(), .job = 1, .memory_bytes = 100}));
  ClientLimits wide = limits;
  wide.memory_per_user_bytes = 100;
  CHECK_FALSE(ClientLedger(wide).objection({.user = 1'234'567, .job = 1, .memory_bytes = 100}));
}

TEST_CASE("sizes near the largest number do not wrap around") {
  ClientLedger ledger({.memory_bytes = 10, .memory_per_user_bytes = 20});
  ledger.enter(1, {1, 1, 9});
  CHECK(ledger.objection({1, 1, ~std::uint64_t{0}}));
  CHECK(ledger.objection({1, 1, ~std::uint64_t{0} - 8}));
  CHECK(ledger.objection({1, 1, 2}));
  CHECK_FALSE(ledger.objection({1, 1, 1}));
}

TEST_CASE("from 80 % on a limit is warned of, for the user that uses it") {
  ClientLedger ledger({.clients = 10, .clients_per_user = 20, .memory_per_user_bytes = 100 * mebibyte});
  for (std::uint64_t i = 0; i < 7; ++i)
    ledger.enter(i, {.user = 3, .job = 1, .memory_bytes = 11 * mebibyte});
  CHECK(ledger.nearly_used().empty());
  ledger.enter(7, {.user = 4, .job = 1, .memory_bytes = 0});
  CHECK(ledger.nearly_used() == "clients: 8 of 10");
  ledger.enter(8, {.user = 3, .job = 1, .memory_bytes = 11 * mebibyte});
  CHECK(ledger.nearly_used() == "clients: 9 of 10; memory_per_user_mib, user 3: 88 MiB of 100 MiB");
}
