#include "sdk/c/fused_pass.hpp"

#include <bit>

// Versions per instruction set, chosen by the dynamic linker; sanitizers cannot run before its choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GOSSAMER_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GOSSAMER_MULTIVERSION
#endif

namespace gossamer::client {
namespace {

/// An integer hash of two multiplications (the constants: Wellons, "lowbias32", found by search for the least bias).
[[gnu::always_inline]] inline std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}

constexpr std::uint32_t lower_half = 0xffff;
constexpr std::uint32_t quiet = 0x00400000;  // in the upper half, so that NaN does not become infinity
constexpr std::uint32_t golden_ratio = 0x9e3779b9;

/// `random`: 16 bits. Infinity has nothing in its lower half, and stays.
[[gnu::always_inline]] inline std::uint32_t rounded_at_random(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (value != value ? bits | quiet : bits + random) & ~lower_half;
}

/// x = round(value of element i), snapshot = x. Of the hash above one multiplication and the better half of its bits
/// are kept, over a sequence that is spread evenly to begin with: the pass is to cost what its memory traffic costs.
template <class Value>
[[gnu::always_inline]] inline void round_and_publish(Bfloat16* __restrict x, float* __restrict snapshot,
                                                     std::size_t count, std::uint32_t dither, Value value) {
  std::uint32_t sequence = mixed(dither);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t random = ((sequence ^ sequence >> 15) * 0x846ca68bU) >> 16;
    sequence += golden_ratio;
    const std::uint32_t bits = rounded_at_random(value(i), random);
    x[i].bits = static_cast<std::uint16_t>(bits >> 16);
    snapshot[i] = std::bit_cast<float>(bits);
  }
}

[[gnu::always_inline]] inline float to_float(Bfloat16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}

}  // namespace

std::uint32_t mix(std::uint32_t bits) {
  return mixed(bits);
}

GOSSAMER_MULTIVERSION
void add_and_publish(float* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = x[i] + correction[i];
    x[i] = sum;
    snapshot[i] = sum;
  }
}

GOSSAMER_MULTIVERSION
void add_and_publish(double* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double sum = x[i] + static_cast<double>(correction[i]);
    x[i] = sum;
    snapshot[i] = static_cast<float>(sum);
  }
}

GOSSAMER_MULTIVERSION
void replace_and_publish(float* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                         std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = correction[i];
    x[i] = value;
    snapshot[i] = value;
  }
}

GOSSAMER_MULTIVERSION
void replace_and_publish(double* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                         std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = correction[i];
    x[i] = static_cast<double>(value);
    snapshot[i] = value;
  }
}

GOSSAMER_MULTIVERSION
void publish(const float* __restrict x, float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = x[i];
}

GOSSAMER_MULTIVERSION
void publish(const double* __restrict x, float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = static_cast<float>(x[i]);
}

GOSSAMER_MULTIVERSION
void add_and_publish(Bfloat16* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                     std::size_t count, std::uint32_t dither) {
  round_and_publish(x, snapshot, count, dither, [=](std::size_t i) { return to_float(x[i]) + correction[i]; });
}

GOSSAMER_MULTIVERSION
void replace_and_publish(Bfloat16* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                         std::size_t count, std::uint32_t dither) {
  round_and_publish(x, snapshot, count, dither, [=](std::size_t i) { return correction[i]; });
}

GOSSAMER_MULTIVERSION
void publish(const Bfloat16* __restrict x, float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = to_float(x[i]);
}

}  // namespace gossamer::client
