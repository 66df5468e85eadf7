// SVE's vectors have no size at compile time, so no array can hold them.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

#include "tools/sim/learn/matrix.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/sim/learn/matrix.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace gossamer::sim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 8>;

/// Computes `rows` rows of c, two vectors of columns at a time: the sums stay in registers while k goes by.
template <std::size_t rows>
HWY_INLINE void multiply_rows(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                              std::size_t k, std::size_t n) {
  const Floats floats;
  const std::size_t lanes = hn::Lanes(floats);
  std::size_t column = 0;
  for (; column + 2 * lanes <= n; column += 2 * lanes) {
    hn::Vec<Floats> left[rows];
    hn::Vec<Floats> right[rows];
    for (std::size_t r = 0; r < rows; ++r)
      left[r] = right[r] = hn::Zero(floats);
    for (std::size_t i = 0; i < k; ++i) {
      const auto b_left = hn::LoadU(floats, b + i * n + column);
      const auto b_right = hn::LoadU(floats, b + i * n + column + lanes);
      for (std::size_t r = 0; r < rows; ++r) {
        const auto factor = hn::Set(floats, a[r * k + i]);
        left[r] = hn::Add(left[r], hn::Mul(factor, b_left));
        right[r] = hn::Add(right[r], hn::Mul(factor, b_right));
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      hn::StoreU(left[r], floats, c + r * n + column);
      hn::StoreU(right[r], floats, c + r * n + column + lanes);
    }
  }
  for (; column < n; column += lanes) {
    const auto mask = hn::FirstN(floats, n - column);
    hn::Vec<Floats> sum[rows];
    for (std::size_t r = 0; r < rows; ++r)
      sum[r] = hn::Zero(floats);
    for (std::size_t i = 0; i < k; ++i) {
      const auto values = hn::MaskedLoad(mask, floats, b + i * n + column);
      for (std::size_t r = 0; r < rows; ++r)
        sum[r] = hn::Add(sum[r], hn::Mul(hn::Set(floats, a[r * k + i]), values));
    }
    for (std::size_t r = 0; r < rows; ++r)
      hn::BlendedStore(sum[r], mask, floats, c + r * n + column);
  }
}

void multiply(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n) {
  std::size_t row = 0;
  for (; row + 4 <= m; row += 4)
    multiply_rows<4>(a + row * k, b, c + row * n, k, n);
  for (; row < m; ++row)
    multiply_rows<1>(a + row * k, b, c + row * n, k, n);
}

}  // namespace gossamer::sim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gossamer::sim {

HWY_EXPORT(multiply);

void multiply(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(multiply)(a, b, c, m, k, n);
}

void transpose(const float* in, std::size_t rows, std::size_t columns, float* out) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c)
      out[c * rows + r] = in[r * columns + c];
  }
}

}  // namespace gossamer::sim
#endif
