#include "sdk/c/fused_pass.hpp"

// Versions per instruction set, chosen by the dynamic linker; sanitizers cannot run before its choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GOSSAMER_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GOSSAMER_MULTIVERSION
#endif

namespace gossamer::client {

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

}  // namespace gossamer::client
