// The outer optimiser: its formulas against a table, and what it must be equal to.

#include "gossip/outer.hpp"

#include <cmath>

#include "catch.hpp"
#include "gossip/random.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

/// One fragment of a block, whose first element is looked at.
struct One {
  One() : buffers({a.data(), b.data(), c.data()}, 1, FragmentParts{.generation = 1}) {}
  void train(float by) { a[0] += by; }  // the publication moves
  OuterTask::Result step(OuterOptions options) {
    const auto result = OuterTask{options}.run(buffers, state);
    if (result.commit) buffers.finish_commit();
    return result;
  }
  [[nodiscard]] float x() const { return buffers.y().at(0); }

  std::vector<float> a = std::vector<float>(block_elements);
  std::vector<float> b = a;
  std::vector<float> c = a;
  FragmentBuffers buffers;
  OuterState state;
};

}  // namespace

TEST_CASE("outer steps follow the formulas", "[outer]") {
  // x moves by 1 before each outer step; η = 0.5, μ = 0.5. By hand:
  //   nesterov: g = −1, v = −1: x = φ + 0.5·1.5 = 0.75; then g = −1, v = −1.5: x = 0.75 + 0.5·1.75 = 1.625
  //   delayed:  v = −1: x = 1 + 0.25 = 1.25; then v = −1.5: x = 2.25 + 0.375 = 2.625
  struct Row {
    OuterKind kind;
    float first, second;
  };
  const Row row = GENERATE(Row{OuterKind::nesterov, 0.75F, 1.625F}, Row{OuterKind::delayed, 1.25F, 2.625F});
  One one;
  const OuterOptions options{.kind = row.kind, .rate = 0.5F, .momentum = 0.5F};
  CHECK_FALSE(one.step(options).commit);  // the first sets the anchor
  CHECK(one.x() == 0);
  one.train(1);
  CHECK(one.step(options).commit);
  CHECK(one.x() == row.first);
  one.train(1);
  CHECK(one.step(options).commit);
  CHECK(one.x() == row.second);
}

TEST_CASE("with rate 1 and no momentum the outer optimiser changes nothing", "[outer]") {
  const OuterKind kind = GENERATE(OuterKind::nesterov, OuterKind::delayed);
  One one;
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    one.train(static_cast<float>(random.uniform() - 0.5));
    const float before = one.x();
    one.step({.kind = kind, .rate = 1, .momentum = 0});
    CHECK(one.x() == Approx(before).margin(1e-6));
  }
}

TEST_CASE("with rate 1 the delayed form is Nesterov's", "[outer]") {
  One nesterov;
  One delayed;
  Random random(2);
  for (int i = 0; i < 50; ++i) {
    const auto by = static_cast<float>(random.uniform());
    nesterov.train(by);
    delayed.train(by);
    nesterov.step({.kind = OuterKind::nesterov, .rate = 1, .momentum = 0.5F});
    delayed.step({.kind = OuterKind::delayed, .rate = 1, .momentum = 0.5F});
    CHECK(delayed.x() == Approx(nesterov.x()).margin(1e-4));
  }
}

TEST_CASE("a constant displacement is amplified by 1 + mu + mu squared and so on", "[outer]") {
  // In the steady state v = g/(1 − μ): each outer step moves by g·(1 + μ/(1 − μ)) = g/(1 − μ) at η = 1.
  const float momentum = GENERATE(0.3F, 0.5F, 0.9F);
  One one;
  const OuterOptions options{.kind = OuterKind::nesterov, .rate = 1, .momentum = momentum};
  one.step(options);
  float last = 0;
  for (int i = 0; i < 200; ++i) {
    last = one.x();
    one.train(0.01F);
    one.step(options);
  }
  CHECK(one.x() - last == Approx(0.01F / (1 - momentum)).epsilon(1e-3));
}

TEST_CASE("the outer optimiser leaves a fragment with NaN alone", "[outer]") {
  One one;
  one.step({.kind = OuterKind::nesterov});
  one.train(std::nanf(""));
  const auto result = one.step({.kind = OuterKind::nesterov});
  CHECK_FALSE(result.finite);
  CHECK_FALSE(result.commit);
}
