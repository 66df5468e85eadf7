#include "tools/bench/memory_traffic.hpp"

#include <bit>

// The dynamic linker chooses among versions for several instruction sets. Sanitizers cannot run before it has chosen.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GOSSAMER_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GOSSAMER_MULTIVERSION
#endif

namespace gossamer::bench {

GOSSAMER_MULTIVERSION
void stream_triad(float* __restrict a, const float* __restrict b, const float* __restrict c, float scale,
                  std::size_t count) {
  for (std::size_t n = 0; n < count; ++n)
    a[n] = b[n] + scale * c[n];
}

GOSSAMER_MULTIVERSION
void stream_copy(float* __restrict a, const float* __restrict b, std::size_t count) {
  for (std::size_t n = 0; n < count; ++n)
    a[n] = b[n];
}

GOSSAMER_MULTIVERSION
void add_and_copy(float* __restrict x, const float* __restrict c, float* __restrict s, std::size_t count) {
  for (std::size_t n = 0; n < count; ++n) {
    const float sum = x[n] + c[n];
    x[n] = sum;
    s[n] = sum;
  }
}

GOSSAMER_MULTIVERSION
void add_and_copy_bfloat16(std::uint16_t* __restrict x, const float* __restrict c, float* __restrict s,
                           std::size_t count) {
  for (std::size_t n = 0; n < count; ++n) {
    const float sum = std::bit_cast<float>(std::uint32_t{x[n]} << 16) + c[n];
    x[n] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sum) >> 16);
    s[n] = sum;
  }
}

}  // namespace gossamer::bench
