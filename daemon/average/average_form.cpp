#include "daemon/average/average_form.hpp"

#include <algorithm>

#include "gossip/codec/eight_bits.hpp"

namespace gossamer::daemon {

using gossip::add_eight_bits;
using gossip::eight_bits_bytes;
using gossip::from_eight_bits;
using gossip::to_eight_bits;

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
  std::ranges::copy(in.first(whole * sizeof(float)), std::as_writable_bytes(out).begin());
  from_eight_bits(in.subspan(whole * sizeof(float)), out.subspan(whole));
}

void AverageForm::add(std::uint32_t fragment, std::span<const std::byte> in, std::span<float> to) const {
  const std::size_t whole = exact_in(fragment, to.size());
  const auto* const values = reinterpret_cast<const float*>(in.data());
  for (std::size_t i = 0; i < whole; ++i)
    to[i] += values[i];
  add_eight_bits(in.subspan(whole * sizeof(float)), to.subspan(whole));
}

}  // namespace gossamer::daemon
