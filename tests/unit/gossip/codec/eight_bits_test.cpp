// Tests that rounding to 8 bits keeps to its scale, loses nothing when it is repeated, and carries over the rest.

#include "gossip/codec/eight_bits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "gossip/random.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

struct Rounded {
  std::vector<float> values;
  std::vector<float> lost;
  std::vector<std::byte> bytes;
};

Rounded rounded(const std::vector<float>& values, std::vector<float> carried) {
  Rounded result{std::vector<float>(values.size()), std::move(carried),
                 std::vector<std::byte>(eight_bits_bytes(values.size()))};
  to_eight_bits(values, result.lost, result.bytes);
  from_eight_bits(result.bytes, result.values);
  return result;
}
Rounded rounded(const std::vector<float>& values) {
  return rounded(values, std::vector<float>(values.size()));
}

}  // namespace

TEST_CASE("8 bits: values are within half a step of their block's scale, and rounding again changes nothing") {
  Random random(1);
  for (const std::size_t count : {1, 2, 255, 256, 257, 1000}) {
    for (const int exponent : {-126, -100, -20, 0, 20, 100, 120}) {
      std::vector<float> values(count);
      for (float& value : values)
        value = std::ldexp(static_cast<float>(2 * random.uniform() - 1), exponent);
      const Rounded once = rounded(values);
      for (std::size_t first = 0; first < count; first += eight_bits_block) {
        const auto block = std::span(values).subspan(first, std::min(eight_bits_block, count - first));
        const float most = std::abs(*std::ranges::max_element(block, {}, [](float value) { return std::abs(value); }));
        for (std::size_t i = 0; i < block.size(); ++i) {
          // A scale is less than most / 63.5, and none is below 2^-126.
          const float step = std::max(most / 63.5F, std::numeric_limits<float>::min());
          CHECK(std::abs(once.values[first + i] - block[i]) <= step / 2);
          CHECK(once.values[first + i] + once.lost[first + i] == block[i]);
        }
      }
      const Rounded twice = rounded(once.values);
      CHECK(twice.values == once.values);
      std::vector<float> sum(count, 1.0F);
      add_eight_bits(once.bytes, sum);
      for (std::size_t i = 0; i < count; ++i)
        CHECK(sum[i] == 1.0F + once.values[i]);
      CHECK(std::ranges::all_of(twice.lost, [](float value) { return value == 0; }));
    }
  }
}

TEST_CASE("8 bits: over many rounds the sum of what is sent is the sum of what was given") {
  Random random(2);
  std::vector<float> given(300), sent(300), carried(300);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> values(300);
    for (std::size_t i = 0; i < values.size(); ++i)
      given[i] += values[i] = static_cast<float>(random.uniform() - 0.3) * (i % 7 == 0 ? 1.0F : 0.001F);
    const Rounded result = rounded(values, carried);
    carried = result.lost;
    for (std::size_t i = 0; i < values.size(); ++i)
      sent[i] += result.values[i];
  }
  for (std::size_t i = 0; i < given.size(); ++i)
    CHECK(std::abs(sent[i] - given[i]) < 0.02);
}

TEST_CASE("8 bits: a block with NaN or infinity is NaN, keeps nothing back, and the others are as they were") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max()}) {
    std::vector<float> values(600, 1.0F);
    values[300] = bad;
    const Rounded result = rounded(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool in_block = i / eight_bits_block == 1;
      CHECK(std::isnan(result.values[i]) == in_block);
      CHECK((in_block || result.values[i] == 1.0F));
      CHECK(result.lost[i] == 0);
    }
  }
}

TEST_CASE("8 bits: any bytes can be read") {
  std::vector<float> out(2);
  for (int byte = 0; byte < 256; ++byte) {
    const std::vector<std::byte> bytes{static_cast<std::byte>(byte), static_cast<std::byte>(128), std::byte{1}};
    from_eight_bits(bytes, out);
  }
  CHECK(std::isnan(out[0]));
}
