// The computation of a pass for one element, on any processor. The loops of sdk/c/fused_pass.cpp in host memory and the
// kernel of sdk/cuda/client_plugin.cu call these functions, so that a step does the same on both. (Only the bits of a
// NaN may differ.)
//
// C++17 without the standard library, because older compilers compile device code. Compiled without contraction to
// fused multiply-add, and with denormal numbers kept. Pure functions, for any thread.

#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GOSSAMER_CLIENT_ANYWHERE __host__ __device__ __forceinline__
#else
#define GOSSAMER_CLIENT_ANYWHERE [[gnu::always_inline]] inline
#endif

namespace gossamer::client {

/// The upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;
};

namespace element {

/// An integer hash of two multiplications (the constants: Wellons, "lowbias32", found by search for the least bias).
GOSSAMER_CLIENT_ANYWHERE std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}

/// Element i of a piece takes its random number from mixed(dither) + i · golden_ratio.
inline constexpr std::uint32_t golden_ratio = 0x9e3779b9;

/// A random number of sixteen bits. A pass should cost no more than its memory traffic. So this takes only one
/// multiplication of the hash above, and the better half of its bits; the sequence itself is already spread evenly.
GOSSAMER_CLIENT_ANYWHERE std::uint32_t random_of(std::uint32_t sequence) {
  return ((sequence ^ sequence >> 15) * 0x846ca68bU) >> 16;
}

/// The bits of a bfloat16 value next to `value`, rounded up or down by 16 random bits. The lower half of infinity is
/// zero, so it stays infinity. NaN is made quiet, so that it does not become infinity.
GOSSAMER_CLIENT_ANYWHERE std::uint32_t rounded_at_random(float value, std::uint32_t random) {
  constexpr std::uint32_t lower_half = 0xffff;
  constexpr std::uint32_t quiet = 0x00400000;
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  return (value != value ? bits | quiet : bits + random) & ~lower_half;
}

GOSSAMER_CLIENT_ANYWHERE float to_float(Bfloat16 x) {
  return __builtin_bit_cast(float, std::uint32_t{x.bits} << 16);
}

/// The sum in the precision of x, or in fp32 for bfloat16.
GOSSAMER_CLIENT_ANYWHERE float sum(float x, float correction) {
  return x + correction;
}
GOSSAMER_CLIENT_ANYWHERE double sum(double x, float correction) {
  return x + static_cast<double>(correction);
}
GOSSAMER_CLIENT_ANYWHERE float sum(Bfloat16 x, float correction) {
  return to_float(x) + correction;
}

/// The value, kept between a and b.
template <class T>
GOSSAMER_CLIENT_ANYWHERE T between(T value, T a, T b) {
  const T low = a < b ? a : b;
  const T high = a < b ? b : a;
  return value < low ? low : value > high ? high : value;
}

/// The sum, kept between x and `before` + correction, where `before` is the last snapshot of x. A buffer such as the
/// running variance of batch norm follows the data by itself. If it is far from its snapshot by now, adding the
/// correction could carry it beyond both values, and below zero.
GOSSAMER_CLIENT_ANYWHERE float sum_within(float x, float correction, float before) {
  return between(sum(x, correction), x, before + correction);
}
GOSSAMER_CLIENT_ANYWHERE double sum_within(double x, float correction, float before) {
  return between(sum(x, correction), x, static_cast<double>(before) + static_cast<double>(correction));
}
GOSSAMER_CLIENT_ANYWHERE float sum_within(Bfloat16 x, float correction, float before) {
  return sum_within(to_float(x), correction, before);
}

/// x = value. Returns the snapshot of x.
GOSSAMER_CLIENT_ANYWHERE float store(float& x, float value, std::uint32_t) {
  x = value;
  return value;
}
GOSSAMER_CLIENT_ANYWHERE float store(double& x, double value, std::uint32_t) {
  x = value;
  return static_cast<float>(value);
}
GOSSAMER_CLIENT_ANYWHERE float store(Bfloat16& x, float value, std::uint32_t sequence) {
  const std::uint32_t bits = rounded_at_random(value, random_of(sequence));
  x.bits = static_cast<std::uint16_t>(bits >> 16);
  return __builtin_bit_cast(float, bits);
}

GOSSAMER_CLIENT_ANYWHERE float snapshot_of(float x) {
  return x;
}
GOSSAMER_CLIENT_ANYWHERE float snapshot_of(double x) {
  return static_cast<float>(x);
}
GOSSAMER_CLIENT_ANYWHERE float snapshot_of(Bfloat16 x) {
  return to_float(x);
}

}  // namespace element
}  // namespace gossamer::client
