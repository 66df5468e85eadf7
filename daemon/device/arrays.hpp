// Converts the arguments of gossip::Device to those of the kernels (gossip/cuda/block.hpp). These are pointers only:
// whatever is as long as a fragment stays where it is.
//
// Pure functions, for any thread.

#pragma once

#include <vector>

#include "gossip/cuda/block.hpp"
#include "gossip/exchange/local_mean.hpp"
#include "gossip/exchange/outer.hpp"

namespace gossamer::device {

/// The first and last index of each range, one after the other.
[[nodiscard]] inline std::vector<std::uint32_t> bounds_of(std::span<const gossip::ElementRange> ranges) {
  std::vector<std::uint32_t> bounds;
  bounds.reserve(2 * ranges.size());
  for (const auto& [first, last] : ranges)
    bounds.insert(bounds.end(), {first, last});
  return bounds;
}

/// `left_out` is what bounds_of() returns for the fragment's ranges. It must outlive the result.
[[nodiscard]] inline gossip::cuda::OuterArrays arrays_of(const gossip::OuterOptions& options,
                                                         const gossip::OuterFragment& fragment,
                                                         const std::vector<std::uint32_t>& left_out) {
  return {.y = fragment.y,
          .in = fragment.in,
          .out = fragment.out,
          .anchor = fragment.anchor,
          .momentum = fragment.momentum,
          .left_out = left_out.data(),
          .left_out_count = static_cast<std::uint32_t>(left_out.size() / 2),
          .mu = options.momentum,
          .rate = options.rate};
}

[[nodiscard]] inline gossip::cuda::ClientArrays arrays_of(const gossip::ClientFragment& client) {
  return {.snapshot = client.snapshot,
          .base = client.base,
          .base_correction = client.base_correction,
          .correction = client.correction,
          .weight = client.weight,
          .check = client.take != gossip::Take::nothing,
          .progress = client.take == gossip::Take::progress,
          .replace = client.replace};
}

}  // namespace gossamer::device
