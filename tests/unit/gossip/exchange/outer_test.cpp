// The outer optimiser: its formula against a table, and other formulas that it must equal.

#include "gossip/exchange/outer.hpp"

#include <cmath>

#include "catch.hpp"
#include "gossip/exchange/exchange.hpp"
#include "gossip/random.hpp"
#include "gossip/test_device.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

/// A fragment of one block. The tests look at its first element.
struct One {
  One() : buffers({there(a), there(b), there(c)}, 1, FragmentParts{.generation = 1}, test_device()), steps(1) {}
  void train(float by, std::size_t element = 0) { a[element] += by; }  // moves the publication
  OuterTask::Result step(OuterOptions options) {
    const auto result = OuterTask{options}.run({.buffers = buffers, .steps = steps, .outer = &state});
    if (result.commit) buffers.finish_commit();
    return result;
  }
  [[nodiscard]] float x(std::size_t element = 0) const { return here(buffers.y()).at(element); }

  std::vector<float> a = std::vector<float>(block_elements);
  std::vector<float> b = a;
  std::vector<float> c = a;
  FragmentBuffers buffers;
  BlockSteps steps;
  OuterState state;
};

}  // namespace

TEST_CASE("outer steps follow the formula", "[outer]") {
  // x moves by 1 before each outer step; η = 0.5, μ = 0.5. By hand: v = 1: x = 1 + 0.25; then v = 1.5: x = 2.25 +
  // 0.375.
  One one;
  const OuterOptions options{.momentum = 0.5F, .rate = 0.5F};
  CHECK_FALSE(one.step(options).commit);  // the first sets the anchor
  CHECK(one.x() == 0);
  one.train(1);
  CHECK(one.step(options).commit);
  CHECK(one.x() == 1.25F);
  one.train(1);
  CHECK(one.step(options).commit);
  CHECK(one.x() == 2.625F);
}

TEST_CASE("with rate 1 an outer step is DiLoCo's with outer learning rate 1", "[outer]") {
  // DiLoCo's formula is written out here: g = φ − x; v = μv + g; x = φ − (g + μv).
  One one;
  Random random(2);
  double anchor = 0;
  double v = 0;
  double x = 0;
  one.step({.momentum = 0.5F, .rate = 1});
  for (int i = 0; i < 50; ++i) {
    const auto by = static_cast<float>(random.uniform());
    one.train(by);
    one.step({.momentum = 0.5F, .rate = 1});
    x += by;
    const double g = anchor - x;
    v = 0.5 * v + g;
    x = anchor - (g + 0.5 * v);
    anchor = x;
    CHECK(one.x() == Approx(x).epsilon(1e-4));
  }
}

TEST_CASE("a constant displacement is amplified by 1 + rate * mu / (1 - mu)", "[outer]") {
  // The push is counted into the next displacement's anchor, so that in the steady state v = g / (1 − μ).
  const float momentum = GENERATE(0.3F, 0.5F, 0.9F);
  const float rate = GENERATE(0.7F, 1.0F);
  One one;
  const OuterOptions options{.momentum = momentum, .rate = rate};
  one.step(options);
  float last = 0;
  for (int i = 0; i < 200; ++i) {
    last = one.x();
    one.train(0.01F);
    one.step(options);
  }
  CHECK(one.x() - last == Approx(0.01F * (1 + rate * momentum / (1 - momentum))).epsilon(2e-3));
}

TEST_CASE("outer steps leave out what they are told to", "[outer]") {
  One one;
  one.state.leave_out({{10, 20}, {255, 256}});
  const OuterOptions options{.momentum = 0.5F, .rate = 1};
  one.step(options);
  for (std::size_t e = 0; e < block_elements; ++e)
    one.train(1, e);
  one.step(options);
  for (std::size_t e = 0; e < block_elements; ++e) {
    const bool left_out = (e >= 10 && e < 20) || e == 255;
    CHECK(one.x(e) == (left_out ? 1.0F : 1.5F));
  }
}

TEST_CASE("the outer optimiser leaves a fragment with NaN alone", "[outer]") {
  One one;
  one.step({.momentum = 0.5F});
  one.train(std::nanf(""));
  const auto result = one.step({.momentum = 0.5F});
  CHECK_FALSE(result.finite);
  CHECK_FALSE(result.commit);
}
