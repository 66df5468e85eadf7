// The arithmetic of a step: one pass over memory that takes over the daemon's correction and takes the snapshot.
// Called by the training thread for each piece of a due fragment.
//
// `x` is the tensor's own memory, `correction` and `snapshot` are shared memory and never overlap it or each other.
// All three have `count` elements. The compiler vectorises these loops, in several versions where it can choose at load
// time.

#pragma once

#include <cstddef>
#include <cstdint>

#include "sdk/cuda/element.hpp"

namespace gossamer::client {

/// x += correction; snapshot = x.
void add_and_publish(float* x, const float* correction, float* snapshot, std::size_t count);
void add_and_publish(double* x, const float* correction, float* snapshot, std::size_t count);

/// x = correction; snapshot = x.
void replace_and_publish(float* x, const float* correction, float* snapshot, std::size_t count);
void replace_and_publish(double* x, const float* correction, float* snapshot, std::size_t count);

/// snapshot = x.
void publish(const float* x, float* snapshot, std::size_t count);
void publish(const double* x, float* snapshot, std::size_t count);

/// In bfloat16: the same, with x rounded up or down at random so that its expectation is the sum (stochastic rounding:
/// Gupta et al., 2015, section 3), or corrections much smaller than the spacing of x would be lost. A value that
/// bfloat16 has is not changed, nor are infinities; NaN stays one. `dither` chooses the random numbers: another one for
/// each pass, and for each replica, or the roundings would not average out.
void add_and_publish(Bfloat16* x, const float* correction, float* snapshot, std::size_t count, std::uint32_t dither);
void replace_and_publish(Bfloat16* x, const float* correction, float* snapshot, std::size_t count,
                         std::uint32_t dither);
void publish(const Bfloat16* x, float* snapshot, std::size_t count);

/// Thirty-two bits of `bits`, well mixed.
[[nodiscard]] std::uint32_t mix(std::uint32_t bits);

}  // namespace gossamer::client
