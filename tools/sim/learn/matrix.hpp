// Products of small dense matrices, stored row after row: the main arithmetic of the workloads that learn.
//
// SIMD through Highway, with separate multiplications and additions (never fused), and each element summed in the order
// of k: the result does not depend on the processor. Pure; any thread.

#pragma once

#include <cstddef>

namespace gossamer::sim {

/// c (m × n) = a (m × k) · b (k × n). The matrices do not overlap.
void multiply(const float* a, const float* b, float* c, std::size_t m, std::size_t k, std::size_t n);

/// out (columns × rows) = inᵀ, where in is (rows × columns).
void transpose(const float* in, std::size_t rows, std::size_t columns, float* out);

}  // namespace gossamer::sim
