// The arithmetic of a step: one pass over memory that takes over the daemon's correction and takes the snapshot.
// Called by the training thread for each piece of a due fragment.
//
// `x` is the tensor's own memory, `correction` and `snapshot` are shared memory and never overlap it or each other.
// All three have `count` elements. The compiler vectorises these loops, in several versions where it can choose at load
// time.

#pragma once

#include <cstddef>

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

}  // namespace gossamer::client
