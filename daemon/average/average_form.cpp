#include "daemon/average/average_form.hpp"

#include <algorithm>
#include <cstring>

#include "gossip/codec/eight_bits.hpp"

namespace gossamer::daemon {

using gossip::add_eight_bits;
using gossip::eight_bits_bytes;
using gossip::from_eight_bits;
using gossip::to_eight_bits;

namespace {

/// How many numbers are added up at once: few enough to stay in the processor's nearest cache.
constexpr std::size_t summed_at_once = 4096;

}  // namespace

std::size_t AverageForm::exact_in(std::uint32_t fragment, std::size_t elements) const {
  const std::size_t first = fragment * average_fragment_elements;
  return !eight_bits ? elements : std::min(exact - std::min(exact, first), elements);
}

std::size_t AverageForm::bytes(std::uint32_t fragment, std::size_t elements) const {
  const std::size_t whole = exact_in(fragment, elements);
  return whole * sizeof(float) + eight_bits_bytes(elements - whole);
}

Bytes AverageForm::encode(std::uint32_t fragment, std::span<const float> values, std::span<float> carried) const {
  const std::size_t whole = exact_in(fragment, values.size());
  std::vector<std::byte> out(bytes(fragment, values.size()));
  std::ranges::copy(std::as_bytes(values.first(whole)), out.begin());
  to_eight_bits(values.subspan(whole), carried.subspan(whole), std::span(out).subspan(whole * sizeof(float)));
  return Bytes::adopt(std::move(out));
}

void AverageForm::decode(std::uint32_t fragment, std::span<const std::byte> in, std::span<float> out) const {
  const std::size_t whole = exact_in(fragment, out.size());
  if (whole != 0) std::memcpy(out.data(), in.data(), whole * sizeof(float));
  from_eight_bits(in.subspan(whole * sizeof(float)), out.subspan(whole));
}

void AverageForm::mean(std::uint32_t fragment, std::span<const Bytes> contributions, std::span<float> out) const {
  const auto count = static_cast<float>(contributions.size());
  const std::size_t whole = exact_in(fragment, out.size());
  for (std::size_t first = 0; first < whole; first += summed_at_once) {
    float* const to = out.data() + first;
    const std::size_t n = std::min(summed_at_once, whole - first);
    const auto part_of = [first](const Bytes& one) { return one.as<float>().data() + first; };
    const float* one = part_of(contributions.front());
    for (const Bytes& other : contributions.subspan(1)) {
      const float* const from = part_of(other);
      for (std::size_t i = 0; i < n; ++i)
        to[i] = one[i] + from[i];
      one = to;
    }
    for (std::size_t i = 0; i < n; ++i)
      to[i] = one[i] / count;
  }
  const std::span<float> rounded = out.subspan(whole);
  from_eight_bits(contributions.front().data.subspan(whole * sizeof(float)), rounded);
  for (const Bytes& one : contributions.subspan(1))
    add_eight_bits(one.data.subspan(whole * sizeof(float)), rounded);
  for (float& value : rounded)
    value /= count;
}

}  // namespace gossamer::daemon
