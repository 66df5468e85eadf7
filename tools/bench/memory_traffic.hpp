// References: plain loops that only move memory, on one core. Bytes are counted as STREAM does (McCalpin, 1995): those
// that the program reads and writes, without the cache lines that the processor reads before it writes them.

#pragma once

#include <cstddef>
#include <cstdint>

namespace gossamer::bench {

/// a = b + scale · c: 12 bytes an element.
void stream_triad(float* a, const float* b, const float* c, float scale, std::size_t count);

/// a = b: 8 bytes an element.
void stream_copy(float* a, const float* b, std::size_t count);

/// x += c; s = x: 16 bytes an element, the traffic of a step that serves a fragment.
void add_and_copy(float* x, const float* c, float* s, std::size_t count);

/// The same with x in bfloat16, the upper half of each sum: 12 bytes an element.
void add_and_copy_bfloat16(std::uint16_t* x, const float* c, float* s, std::size_t count);

}  // namespace gossamer::bench
