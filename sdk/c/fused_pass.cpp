#include "sdk/c/fused_pass.hpp"

// The dynamic linker chooses among versions for several instruction sets. Sanitizers cannot run before it has chosen.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GOSSAMER_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GOSSAMER_MULTIVERSION
#endif

namespace gossamer::client {
namespace {

/// x = round(the value of element i); snapshot = x.
template <class Value>
[[gnu::always_inline]] inline void round_and_publish(Bfloat16* __restrict x, float* __restrict snapshot,
                                                     std::size_t count, std::uint32_t dither, Value value) {
  std::uint32_t sequence = element::mixed(dither);
  for (std::size_t i = 0; i < count; ++i) {
    snapshot[i] = element::store(x[i], value(i), sequence);
    sequence += element::golden_ratio;
  }
}

}  // namespace

std::uint32_t mix(std::uint32_t bits) {
  return element::mixed(bits);
}

GOSSAMER_MULTIVERSION
void add_and_publish(float* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::store(x[i], element::sum(x[i], correction[i]), 0);
}

GOSSAMER_MULTIVERSION
void add_and_publish(double* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                     std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::store(x[i], element::sum(x[i], correction[i]), 0);
}

GOSSAMER_MULTIVERSION
void add_within_and_publish(float* __restrict x, const float* __restrict correction, const float* __restrict before,
                            float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::store(x[i], element::sum_within(x[i], correction[i], before[i]), 0);
}

GOSSAMER_MULTIVERSION
void add_within_and_publish(double* __restrict x, const float* __restrict correction, const float* __restrict before,
                            float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::store(x[i], element::sum_within(x[i], correction[i], before[i]), 0);
}

GOSSAMER_MULTIVERSION
void replace_and_publish(float* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                         std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::store(x[i], correction[i], 0);
}

GOSSAMER_MULTIVERSION
void replace_and_publish(double* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                         std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::store(x[i], static_cast<double>(correction[i]), 0);
}

GOSSAMER_MULTIVERSION
void publish(const float* __restrict x, float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::snapshot_of(x[i]);
}

GOSSAMER_MULTIVERSION
void publish(const double* __restrict x, float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::snapshot_of(x[i]);
}

GOSSAMER_MULTIVERSION
void add_and_publish(Bfloat16* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                     std::size_t count, std::uint32_t dither) {
  round_and_publish(x, snapshot, count, dither, [=](std::size_t i) { return element::sum(x[i], correction[i]); });
}

GOSSAMER_MULTIVERSION
void add_within_and_publish(Bfloat16* __restrict x, const float* __restrict correction, const float* __restrict before,
                            float* __restrict snapshot, std::size_t count, std::uint32_t dither) {
  round_and_publish(x, snapshot, count, dither,
                    [=](std::size_t i) { return element::sum_within(x[i], correction[i], before[i]); });
}

GOSSAMER_MULTIVERSION
void replace_and_publish(Bfloat16* __restrict x, const float* __restrict correction, float* __restrict snapshot,
                         std::size_t count, std::uint32_t dither) {
  round_and_publish(x, snapshot, count, dither, [=](std::size_t i) { return correction[i]; });
}

GOSSAMER_MULTIVERSION
void publish(const Bfloat16* __restrict x, float* __restrict snapshot, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    snapshot[i] = element::snapshot_of(x[i]);
}

}  // namespace gossamer::client
