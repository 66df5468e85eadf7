// The loops are compiled for every target of Highway, and chosen at run time. They are plain loops, which the compiler
// vectorises; no result depends on the target.

#include "gossip/codec/eight_bits.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "gossip/check.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gossip/codec/eight_bits.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace gossamer::gossip::HWY_NAMESPACE {

using Values = std::array<float, eight_bits_block>;
using Wholes = std::array<std::int8_t, eight_bits_block>;

/// A scale is 2^exponent, and is sent as exponent − least_exponent.
constexpr int least_exponent = -126;
constexpr int most_exponent = 121;  // the largest with which 127 times the scale is finite
constexpr std::uint8_t not_a_number = 255;
constexpr float most_whole = 127;
/// Added to a float of small magnitude, it leaves the nearest whole number in the low bits of the sum.
constexpr float round_by = 12'582'912.0F;  // 1.5 * 2^23

HWY_INLINE float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// Bits of magnitudes are in the order of the magnitudes, with infinity and NaN above all.
HWY_INLINE float largest_magnitude(const Values& values) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < eight_bits_block; ++i)
    most = std::max(most, std::bit_cast<std::uint32_t>(values[i]) & 0x7fff'ffffU);
  return std::bit_cast<float>(most);
}

HWY_INLINE std::uint8_t scale_for(float magnitude) {
  if (!(magnitude <= most_whole * power_of_two(most_exponent))) return not_a_number;
  const int of_magnitude = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  int exponent = std::clamp(of_magnitude - 6, least_exponent, most_exponent);
  if (magnitude > most_whole * power_of_two(exponent)) ++exponent;
  return static_cast<std::uint8_t>(exponent - least_exponent);
}

HWY_INLINE float scale_of(std::byte sent) {
  const int exponent = static_cast<int>(sent) + least_exponent;
  return exponent > most_exponent ? std::numeric_limits<float>::quiet_NaN() : power_of_two(exponent);
}

/// Replaces `values` by what rounding took away. That is zero for a block with NaN or infinity.
HWY_INLINE std::uint8_t round_block(Values& values, Wholes& wholes) {
  const std::uint8_t sent = scale_for(largest_magnitude(values));
  if (sent == not_a_number) {
    values.fill(0);
    wholes.fill(0);
    return sent;
  }
  const float scale = power_of_two(sent + least_exponent);
  const float inverse = 1 / scale;
  for (std::size_t i = 0; i < eight_bits_block; ++i) {
    const float shifted = values[i] * inverse + round_by;
    values[i] -= (shifted - round_by) * scale;
    wholes[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(shifted));
  }
  return sent;
}

void round_all(const float* values, float* carried, std::size_t count, std::byte* out) {
  const std::size_t blocks = eight_bits_bytes(count) - count;
  std::byte* const bytes = out + blocks;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * eight_bits_block;
    const std::size_t here = std::min(eight_bits_block, count - first);
    Values sums;
    if (here < eight_bits_block) sums.fill(0);
    for (std::size_t i = 0; i < here; ++i)
      sums[i] = values[first + i] + carried[first + i];
    Wholes wholes;
    out[block] = static_cast<std::byte>(round_block(sums, wholes));
    std::copy_n(sums.data(), here, carried + first);
    std::copy_n(reinterpret_cast<const std::byte*>(wholes.data()), here, bytes + first);
  }
}

template <bool add>
HWY_INLINE void read_all(const std::byte* in, std::size_t count, float* out) {
  const std::size_t blocks = eight_bits_bytes(count) - count;
  const auto* const wholes = reinterpret_cast<const std::int8_t*>(in + blocks);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * eight_bits_block;
    const float scale = scale_of(in[block]);
    // The compiler vectorises a loop only if its count is constant.
    if (count - first >= eight_bits_block) {
      for (std::size_t i = 0; i < eight_bits_block; ++i)
        out[first + i] = (add ? out[first + i] : 0.0F) + static_cast<float>(wholes[first + i]) * scale;
    } else {
      for (std::size_t i = first; i < count; ++i)
        out[i] = (add ? out[i] : 0.0F) + static_cast<float>(wholes[i]) * scale;
    }
  }
}
void set_all(const std::byte* in, std::size_t count, float* out) {
  read_all<false>(in, count, out);
}
void add_all(const std::byte* in, std::size_t count, float* out) {
  read_all<true>(in, count, out);
}

}  // namespace gossamer::gossip::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gossamer::gossip {

HWY_EXPORT(round_all);
HWY_EXPORT(set_all);
HWY_EXPORT(add_all);

void to_eight_bits(std::span<const float> values, std::span<float> carried, std::span<std::byte> out) {
  GOSSAMER_CHECK(carried.size() == values.size() && out.size() == eight_bits_bytes(values.size()));
  HWY_DYNAMIC_DISPATCH(round_all)(values.data(), carried.data(), values.size(), out.data());
}

void from_eight_bits(std::span<const std::byte> in, std::span<float> out) {
  GOSSAMER_CHECK(in.size() == eight_bits_bytes(out.size()));
  HWY_DYNAMIC_DISPATCH(set_all)(in.data(), out.size(), out.data());
}

void add_eight_bits(std::span<const std::byte> in, std::span<float> to) {
  GOSSAMER_CHECK(in.size() == eight_bits_bytes(to.size()));
  HWY_DYNAMIC_DISPATCH(add_all)(in.data(), to.size(), to.data());
}

}  // namespace gossamer::gossip
#endif
