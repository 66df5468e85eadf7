// The form in which a collective's numbers travel: all in fp32, or the first few in fp32 and the rest rounded to 8 bits
// (gossip/codec/eight_bits.hpp). All members of a collective use the same form.

#pragma once

#include <span>
#include <vector>

#include "gossip/types.hpp"

namespace gossamer::daemon {

/// The most numbers that a fragment has. In fp32 such a fragment is a message of 256 KiB.
inline constexpr std::size_t average_fragment_elements = std::size_t{1} << 16;

struct AverageForm {
  bool eight_bits = false;
  std::size_t exact = 0;  ///< in the eight-bit form: how many of the first values stay in fp32

  /// The encoded size of a fragment with so many elements.
  [[nodiscard]] std::size_t bytes(std::uint32_t fragment, std::size_t elements) const;
  /// Encodes the fragment's values plus `carried`. `carried` then holds what rounding has taken away.
  [[nodiscard]] Bytes encode(std::uint32_t fragment, std::span<const float> values, std::span<float> carried) const;
  void decode(std::uint32_t fragment, std::span<const std::byte> in, std::span<float> out) const;
  /// The mean of encoded contributions. They are added in this order in fp32, so the bits do not depend on who adds.
  /// `contributions` is not empty.
  void mean(std::uint32_t fragment, std::span<const Bytes> contributions, std::span<float> out) const;

 private:
  [[nodiscard]] std::size_t exact_in(std::uint32_t fragment, std::size_t elements) const;
};

}  // namespace gossamer::daemon
