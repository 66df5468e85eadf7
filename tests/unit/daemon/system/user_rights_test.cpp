// Users and groups of this machine, and the jobs that they may train and steer.

#include "daemon/system/user_rights.hpp"

#include "tests/unit/catch.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

namespace {

// No machine has users or groups of these numbers.
constexpr uid_t anna = 1'234'567;
constexpr uid_t bert = 1'234'568;
constexpr gid_t vision = 2'345'678;

bool may_train(const std::vector<std::string>& entries, const Caller& caller, std::string_view job) {
  return !UserRights(entries, {}).objection_to_training(caller, job);
}

}  // namespace

TEST_CASE("an entry names who, and which jobs") {
  for (const char* good : {"*: *", "anna:*", "@vision: vision-*,speech", " anna : a ", "1000: *", "@1000: a?"})
    CHECK(grant_problem(good).empty());
  for (const char* bad : {"", "*", "anna", ": *", "@: *", "anna:", "anna: ", "anna: two words", "anna: a;b", "a: b: c"})
    CHECK_FALSE(grant_problem(bad).empty());
  CHECK_THAT(grant_problem("anna"), Contains("\"anna\"") && Contains("WHO: JOBS"));
  CHECK_THAT(grant_problem("anna: a b"), Contains("names of jobs are expected"));
}

TEST_CASE("users and groups may train the jobs of their entries, and no others") {
  const Caller of_vision{.process = 1, .user = bert, .groups = {5, vision}};
  CHECK(may_train({"*: *"}, {.user = anna}, "a"));
  CHECK_FALSE(may_train({}, {.user = anna}, "a"));
  const std::vector<std::string> entries = {"1234567: a,b-*", "@2345678: vision-*", "*: open"};
  CHECK(may_train(entries, {.user = anna}, "a"));
  CHECK(may_train(entries, {.user = anna}, "b-1"));
  CHECK_FALSE(may_train(entries, {.user = anna}, "b"));
  CHECK_FALSE(may_train(entries, {.user = anna}, "vision-1"));
  CHECK_FALSE(may_train(entries, {.user = bert}, "a"));
  CHECK(may_train(entries, of_vision, "vision-1"));
  CHECK_FALSE(may_train(entries, of_vision, "a"));
  CHECK(may_train(entries, {.user = bert}, "open"));
  CHECK_FALSE(may_train(entries, {}, "a"));  // the kernel does not say who it is
  CHECK(may_train({}, {.user = 0}, "a"));
  CHECK_THAT(*UserRights({}, {}).objection_to_training({.user = anna}, "a"),
             Contains("user 1234567 may not train the job a") && Contains("[rights] train"));
}

TEST_CASE("who may train a job may steer it only if an entry says so") {
  const UserRights rights({"*: *"}, {"1234567: a"});
  CHECK(rights.may_steer({.user = anna}, "a"));
  CHECK_FALSE(rights.may_steer({.user = anna}, "b"));
  CHECK_FALSE(rights.may_steer({.user = bert}, "a"));
  CHECK(rights.may_steer({.user = 0}, "b"));
}

TEST_CASE("names are those of this machine, and an unknown one admits nobody") {
  const UserRights rights({"root: *", "@root: a", "nobody-has-this-name: *", "@nor-this: *"}, {});
  CHECK(rights.unknown() == std::vector<std::string>{"nobody-has-this-name", "@nor-this"});
  CHECK_FALSE(rights.objection_to_training({.user = anna, .groups = {0}}, "a"));
  CHECK(rights.objection_to_training({.user = anna, .groups = {0}}, "b"));
  CHECK(rights.objection_to_training({.user = anna}, "a"));
}
