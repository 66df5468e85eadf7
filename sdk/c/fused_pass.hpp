// The arithmetic of a step: one pass over memory that applies the daemon's correction and takes the snapshot. The
// training thread calls it for each piece of a due fragment.
//
// `x` is the tensor's own memory. `correction`, `before` and `snapshot` are shared memory and overlap neither it nor
// each other. All have `count` elements. The compiler vectorises these loops, in several versions where it can choose
// at load time.

#pragma once

#include <cstddef>
#include <cstdint>

#include "sdk/cuda/element.hpp"

namespace gossamer::client {

/// x += correction; snapshot = x.
void add_and_publish(float* x, const float* correction, float* snapshot, std::size_t count);
void add_and_publish(double* x, const float* correction, float* snapshot, std::size_t count);

/// The same for buffers, which follow the data: x stays between what it is and before + correction, where `before` is
/// the snapshot that the correction is for (element::sum_within()).
void add_within_and_publish(float* x, const float* correction, const float* before, float* snapshot, std::size_t count);
void add_within_and_publish(double* x, const float* correction, const float* before, float* snapshot,
                            std::size_t count);

/// x = correction; snapshot = x.
void replace_and_publish(float* x, const float* correction, float* snapshot, std::size_t count);
void replace_and_publish(double* x, const float* correction, float* snapshot, std::size_t count);

/// snapshot = x.
void publish(const float* x, float* snapshot, std::size_t count);
void publish(const double* x, float* snapshot, std::size_t count);

/// The same in bfloat16. x is rounded up or down at random so that its expectation is the sum (stochastic rounding:
/// Gupta et al., 2015, section 3); otherwise corrections much smaller than the spacing of x would be lost. A value that
/// bfloat16 can represent is not changed, nor is infinity; NaN stays NaN. `dither` chooses the random numbers. It must
/// differ between passes and between replicas, or the roundings would not average out.
void add_and_publish(Bfloat16* x, const float* correction, float* snapshot, std::size_t count, std::uint32_t dither);
void add_within_and_publish(Bfloat16* x, const float* correction, const float* before, float* snapshot,
                            std::size_t count, std::uint32_t dither);
void replace_and_publish(Bfloat16* x, const float* correction, float* snapshot, std::size_t count,
                         std::uint32_t dither);
void publish(const Bfloat16* x, float* snapshot, std::size_t count);

/// A hash of `bits` with thirty-two well-mixed bits.
[[nodiscard]] std::uint32_t mix(std::uint32_t bits);

}  // namespace gossamer::client
