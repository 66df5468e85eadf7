// When a model is said to grow without bound.

#include "daemon/jobs/growth.hpp"
#include "catch.hpp"

using namespace gossamer;
using namespace gossamer::daemon;

namespace {

struct Model {
  Growth growth = {};
  TimeUs now_us = 0;
  double size = 0;

  /// The first second in which it is reported; none: in none of `seconds`.
  std::optional<int> grow(double factor, int seconds) {
    for (int second = 0; second < seconds; ++second) {
      size *= factor;
      growth.look(now_us += us_per_s, size);
      if (growth.without_bound()) return second;
    }
    return std::nullopt;
  }
};

}  // namespace

TEST_CASE("a model that diverges is found once its numbers are a thousand times as large") {
  Model model{.size = 2};
  CHECK(model.grow(1.0, 100) == std::nullopt);
  CHECK(model.grow(2.0, 100) == 9);
}

TEST_CASE("a model that grows for minutes, or begins with zeros, is not said to diverge") {
  CHECK(Model{.size = 1e-9}.grow(10, 11) == std::nullopt);
  CHECK(Model{.size = 0.01}.grow(1.1, 130) == std::nullopt);
  CHECK(Model{.size = 1e6}.grow(1.0, 100) == std::nullopt);
  CHECK(Model{.size = 0}.grow(1.0, 100) == std::nullopt);
}

TEST_CASE("a model that has come down again, or stays as large as it is, is not said to grow") {
  Model model{.size = 1};
  REQUIRE(model.grow(10, 10));
  Model stays = model;
  for (int second = 0; second < 61; ++second)
    stays.growth.look(stays.now_us += us_per_s, stays.size);
  CHECK(!stays.growth.without_bound());
  model.size = 1;
  CHECK(!model.grow(1, 1));
}
