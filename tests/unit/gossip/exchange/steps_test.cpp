// What a node learns of its disagreement with the others, and the quantiser steps that follow from it, by tables.

#include <cmath>
#include <limits>

#include "catch.hpp"
#include "gossip/exchange/steps.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr std::uint32_t first_block[] = {0};

/// Steps of one block whose estimate is exactly `mean`: the block is filled with 32 times that.
BlockSteps steps_with_mean(float mean) {
  const std::vector<float> values(block_elements, 32 * mean);
  BlockSteps steps(1);
  steps.prime({.publication = values.data()}, processor());
  return steps;
}

float observe_one(BlockSteps& steps, float mean_abs, float factor, bool wide = false) {
  const BlockOutcome outcomes[] = {{.mean_abs = mean_abs, .mean_square = mean_abs * mean_abs, .wide = wide}};
  return steps.observe(first_block, outcomes, factor);
}

}  // namespace

TEST_CASE("the first estimate is a 32nd of a block's mean magnitude", "[steps]") {
  std::vector<float> publication(3 * block_elements);
  std::vector<float> correction(3 * block_elements);
  for (std::size_t i = 0; i < block_elements; ++i) {
    publication[i] = i % 2 == 0 ? 64.0F : -64.0F;
    publication[block_elements + i] = 1.0F;
    correction[block_elements + i] = -5.0F;
  }
  publication[2 * block_elements + 3] = std::numeric_limits<float>::infinity();
  BlockSteps steps(3);
  CHECK_FALSE(steps.primed());
  steps.prime({publication.data(), correction.data()}, processor());
  CHECK(steps.primed());
  // The block means are 64 / 32 = 2, |1 − 5| / 32 = 1/8, and 0 where no value can be used.
  CHECK(steps.mean() == Approx((2.0 + 0.125) / 3));
  CHECK(steps.exponent(Codec::q8, 128, 1, 0) == 1);
  CHECK(steps.exponent(Codec::q8, 128, 1, 1) == -3);
  CHECK(steps.exponent(Codec::q8, 128, 1, 2) == min_step_exponent);
}

TEST_CASE("a step is the power of two at or above range times mean over half the codec's range", "[steps]") {
  struct Row {
    Codec codec;
    float mean, range, factor;
    int exponent;
  };
  const Row row = GENERATE(values<Row>({
      {Codec::q8, 1.0F, 128, 1, 0},            // 128 · 1 / 128 = 1
      {Codec::q8, 1.0F, 129, 1, 1},            // a little more: the next step
      {Codec::q8, 1.0F, 127, 1, 0},            // a little less: no smaller step
      {Codec::q8, 1.0F, 64, 1, -1},            //
      {Codec::q8, 1.0F, 12, 1, -3},            // 12 / 128 = 0.094 → 1/8
      {Codec::q4, 1.0F, 12, 1, 1},             // 12 / 8 = 1.5 → 2
      {Codec::q4, 1.0F, 8, 1, 0},              //
      {Codec::q4, 1.0F, 8, 16, 4},             // a link's factor counts alike
      {Codec::q4, 1.0F, 8, 0.0625F, -4},       //
      {Codec::q8, 0.0F, 12, 1, -100},          // nothing known: the encoder raises it
      {Codec::q8, 0x1p-120F, 12, 1, -100},     // clamped below
      {Codec::q8, 0x1p+100F, 128, 1024, 100},  // the largest exponent
      {Codec::f32, 1.0F, 12, 1, 0},            // has no steps
  }));
  CAPTURE(codec_name(row.codec), row.mean, row.range, row.factor);
  const BlockSteps steps = steps_with_mean(row.mean);
  CHECK(steps.exponent(row.codec, row.range, row.factor, 0) == row.exponent);
  std::int8_t listed[1];
  steps.exponents(row.codec, row.range, row.factor, first_block, listed);
  CHECK(listed[0] == row.exponent);
}

TEST_CASE("an estimate moves a quarter of the way to what was seen", "[steps]") {
  BlockSteps steps = steps_with_mean(1.0F);
  CHECK(observe_one(steps, 5.0F, 1) == Approx(5.0));
  CHECK(steps.mean() == Approx(2.0));
  CHECK(observe_one(steps, 0.0F, 1) == 0);
  CHECK(steps.mean() == Approx(1.5));
  // A link of factor 4 that shows 8 means a distance of 2 for the block itself. 8 was seen where 6 was expected.
  CHECK(observe_one(steps, 8.0F, 4) == Approx(8.0 / 6.0));
  CHECK(steps.mean() == Approx(1.625));
  for (int i = 0; i < 60; ++i)
    observe_one(steps, 0.25F, 1);
  CHECK(steps.mean() == Approx(0.25));
}

TEST_CASE("only the blocks of an exchange are learned from", "[steps]") {
  std::vector<float> values(4 * block_elements, 32.0F);
  BlockSteps steps(4);
  steps.prime({.publication = values.data()}, processor());
  const std::uint32_t blocks[] = {1, 3};
  const BlockOutcome outcomes[] = {{.mean_abs = 5}, {.mean_abs = 9}};
  CHECK(steps.observe(blocks, outcomes, 1) == Approx(14.0 / 2));
  const int expected[] = {0, 1, 0, 2};  // means 1, 2, 1, 3
  for (std::uint32_t block = 0; block < 4; ++block)
    CHECK(steps.exponent(Codec::q8, 128, 1, block) == expected[block]);
}

TEST_CASE("a block out of range doubles its estimate and is not compared", "[steps]") {
  BlockSteps steps = steps_with_mean(1.0F);
  CHECK(observe_one(steps, 123.0F, 1, true) == 0);
  CHECK(steps.mean() == 2.0F);
}

TEST_CASE("a block that keeps going out of range learns a wider one of its own", "[steps]") {
  BlockSteps steps = steps_with_mean(1.0F);
  const int usual = steps.exponent(Codec::q8, 128, 1, 0);
  // After one time out of range and then many in it, the mean falls again. The wider range stays for a while.
  observe_one(steps, 0, 1, true);
  for (int i = 0; i < 30; ++i)
    observe_one(steps, 1.0F, 1);
  CHECK(steps.mean() == Approx(1.0).epsilon(1e-3));
  CHECK(steps.exponent(Codec::q8, 128, 1, 0) == usual + 1);  // 1.5 · 0.99^30 = 1.1 times the range
  for (int i = 0; i < 30; ++i)
    observe_one(steps, 1.0F, 1);
  CHECK(steps.exponent(Codec::q8, 120, 1, 0) == usual);
  // The range is never widened more than 8 times.
  for (int i = 0; i < 100; ++i)
    observe_one(steps, 0, 1, true);
  steps.refine(0, 6);
  const float mean = steps.mean();
  CHECK(steps.exponent(Codec::q8, 128 / mean / 8, 1, 0) == usual);
}

TEST_CASE("an estimate taken for too coarse falls, by no more than 6 powers of two", "[steps]") {
  struct Row {
    int halvings;
    float mean;
  };
  const Row row = GENERATE(values<Row>({{-3, 1}, {0, 1}, {1, 0.5F}, {6, 0x1p-6F}, {7, 0x1p-6F}, {200, 0x1p-6F}}));
  BlockSteps steps = steps_with_mean(1.0F);
  steps.refine(0, row.halvings);
  CHECK(steps.mean() == row.mean);
}

TEST_CASE("an estimate recovers from any number of wide blocks", "[steps]") {
  BlockSteps steps = steps_with_mean(1.0F);
  for (int i = 0; i < 400; ++i)
    observe_one(steps, 0, 1, true);
  CHECK(std::isfinite(steps.mean()));
  CHECK(steps.exponent(Codec::q8, 12, 65536.0F * 64, 0) == max_step_exponent);
  for (int i = 0; i < 2; ++i)
    observe_one(steps, std::numeric_limits<float>::max(), 1.0F / 16);
  CHECK(std::isfinite(steps.mean()));
  for (int i = 0; i < 1000; ++i)
    observe_one(steps, 0.5F, 1);
  CHECK(steps.mean() == Approx(0.5));
}

TEST_CASE("a link's factor follows the ratio slowly", "[steps]") {
  struct Row {
    float ratio, wide_fraction;
    double factor;
  };
  const Row row = GENERATE(values<Row>({
      {1, 0, 1},
      {0, 0, 1},            // nothing to compare
      {2, 0, 1.10957},      // 2^0.15
      {0.5F, 0, 0.90125},   // 2^-0.15
      {16, 0, 1.51572},     // 16^0.15
      {1e6F, 0, 1.51572},   // the most from one exchange
      {1e-6F, 0, 0.65975},  // the least from one exchange
      {1, 0.25F, 1},        // a few wide blocks are usual
      {1, 0.26F, 2},        // this many are not
      {0, 1, 2},            //
      {2, 1, 2.21914},      //
  }));
  CAPTURE(row.ratio, row.wide_fraction);
  LinkFactor factor;
  CHECK(factor.value() == 1.0F);
  factor.observe(row.ratio, row.wide_fraction);
  CHECK(factor.value() == Approx(row.factor).epsilon(1e-4));
}

TEST_CASE("a link's factor has bounds", "[steps]") {
  LinkFactor factor;
  for (int i = 0; i < 100; ++i)
    factor.observe(16, 1);
  CHECK(factor.value() == 65536.0F);
  for (int i = 0; i < 1000; ++i)
    factor.observe(1.0F / 16, 0);
  CHECK(factor.value() == 1.0F / 16);
}

TEST_CASE("two links share the estimate and keep their own factors", "[steps]") {
  // One partner's distance is 1, another's is 32. After a while each link has steps of its own.
  BlockSteps steps = steps_with_mean(1.0F);
  LinkFactor near;
  LinkFactor far;
  for (int i = 0; i < 400; ++i) {
    near.observe(observe_one(steps, 1.0F, near.value()), 0);
    far.observe(observe_one(steps, 32.0F, far.value()), 0);
  }
  CHECK(steps.mean() * near.value() == Approx(1.0).epsilon(0.2));
  CHECK(steps.mean() * far.value() == Approx(32.0).epsilon(0.2));
}
