// That gossamer.hpp needs no more than C++20 and is movable, typed and exact about errors. Compiled as C++20.

#include <gossamer.hpp>
#include <type_traits>
#include <vector>

#include "catch.hpp"

static_assert(__cplusplus < 202100L, "this file is to be compiled as C++20");
static_assert(std::is_move_constructible_v<gossamer::Run> && !std::is_copy_constructible_v<gossamer::Run>);

TEST_CASE("a run moves with its handle") {
  std::vector<float> weights(10);
  const gossamer::Tensor tensors[] = {gossamer::param("weights", weights, {2, 5})};
  gossamer::Run first({.job = "cpp", .socket_path = "/nonexistent/socket"}, tensors);
  gossamer_run* handle = first.handle();
  gossamer::Run second = std::move(first);
  CHECK(first.handle() == nullptr);
  CHECK(second.handle() == handle);
  second.step(3);
  CHECK(second.info().clock_samples == 3);
}

TEST_CASE("errors carry the status and the message") {
  std::vector<double> weights(10);
  CHECK_THROWS_AS(gossamer::param("weights", weights, {3}), gossamer::Error);
  const gossamer::Tensor tensors[] = {gossamer::param("weights", weights)};
  try {
    gossamer::Run run({.job = "no spaces"}, tensors);
    FAIL("opened");
  } catch (const gossamer::Error& error) {
    CHECK(error.status() == GOSSAMER_BAD_ARGUMENT);
    CHECK(std::string(error.what()).find("GOSSAMER_BAD_ARGUMENT: the job") == 0);
  }
}
