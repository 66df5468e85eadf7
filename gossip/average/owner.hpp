// Which member owns a fragment: the one whose hash with the fragment is largest (rendezvous hashing, Thaler &
// Ravishankar 1998, "Using name-based mappings to increase hit rates"). Each owns about as many fragments as the
// others. When a member goes, only its fragments get other owners. Any thread.

#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "gossip/random.hpp"

namespace gossamer::gossip {

/// `members`: at least one.
[[nodiscard]] inline NodeId owner_of(std::uint32_t fragment, std::span<const NodeId> members) {
  const auto score = [fragment](const NodeId& node) {
    std::uint64_t halves[2];
    std::memcpy(halves, node.bytes.data(), sizeof halves);
    return Random(Random(halves[0] ^ Random(halves[1]).next()).next() + fragment).next();
  };
  return *std::ranges::max_element(members, {}, [&](const NodeId& node) { return std::pair(score(node), node); });
}

}  // namespace gossamer::gossip
