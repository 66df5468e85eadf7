// Values for tests of the codec and of devices. Each kind is difficult in some way.

#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "gossip/types.hpp"

namespace values {

using namespace gossamer;
using Random = std::mt19937_64;
using Values = std::vector<float>;

/// A kind of values that is difficult in some way.
struct Kind {
  const char* name;
  std::function<float(Random&, std::size_t)> value;
};

inline float normal(Random& random) {
  return std::normal_distribution<float>()(random);
}
inline float laplace(Random& random) {
  const float magnitude = std::exponential_distribution<float>()(random);
  return random() % 2 == 0 ? magnitude : -magnitude;
}
inline float student3(Random& random) {
  return std::student_t_distribution<float>(3)(random);
}
inline float sparse(Random& random) {
  return random() % 50 == 0 ? 10 * normal(random) : 0;
}
inline float random_bits(Random& random) {
  const auto bits = static_cast<std::uint32_t>(random());
  const float value = std::bit_cast<float>(bits);
  return std::isfinite(value) ? value : std::bit_cast<float>(bits & 0x807fffffU);
}

inline const std::vector<Kind> kinds = {
    {"normal", [](Random& r, std::size_t) { return normal(r); }},
    {"zero", [](Random&, std::size_t) { return 0.0F; }},
    {"negative zero", [](Random&, std::size_t) { return -0.0F; }},
    {"tiny", [](Random& r, std::size_t) { return 1e-30F * normal(r); }},
    {"denormal", [](Random& r, std::size_t) { return 1e-40F * normal(r); }},
    {"huge", [](Random& r, std::size_t) { return 1e30F * normal(r); }},
    {"beyond every step", [](Random& r, std::size_t) { return 1e37F * normal(r); }},
    {"one outlier", [](Random& r, std::size_t n) { return n % 256 == 77 ? 1e6F : 1e-3F * normal(r); }},
    {"heavy-tailed", [](Random& r, std::size_t) { return student3(r); }},
    {"any bits", [](Random& r, std::size_t) { return random_bits(r); }},
    {"just under a power of two", [](Random& r, std::size_t) { return r() % 2 == 0 ? 0.99999994F : -0.99999994F; }},
    {"up to half a codec's range under the largest index",
     [](Random& r, std::size_t) {
       const float magnitude = 4.0F - 0x1p-18F * static_cast<float>(1 + r() % 200);
       return r() % 2 == 0 ? magnitude : -magnitude;
     }},
};

inline Values make(const Kind& kind, Random& random, std::size_t elements) {
  Values values(elements);
  for (std::size_t n = 0; n < elements; ++n)
    values[n] = kind.value(random, n);
  return values;
}

template <class Sample>
Values sampled(Random& random, std::size_t elements, Sample sample) {
  Values values(elements);
  for (float& value : values)
    value = sample(random);
  return values;
}

inline std::vector<std::uint32_t> all_blocks(std::size_t count) {
  std::vector<std::uint32_t> blocks(count);
  for (std::size_t n = 0; n < count; ++n)
    blocks[n] = static_cast<std::uint32_t>(n);
  return blocks;
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace values
