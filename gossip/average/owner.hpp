// Which member owns a fragment: the one whose hash with the fragment is largest (rendezvous hashing, Thaler &
// Ravishankar 1998, "Using name-based mappings to increase hit rates"). Each owns about as many fragments as the
// others. When a member goes, only its fragments get other owners. Any thread.

#pragma once

#include <algorithm>
#include <span>

#include "gossip/random.hpp"

namespace gossamer::gossip {

/// `members`: at least one.
[[nodiscard]] inline NodeId owner_of(std::uint32_t fragment, std::span<const NodeId> members) {
  const std::uint64_t salt = Random(fragment).next();
  const auto score = [salt](const NodeId& node) { return Random(std::hash<NodeId>{}(node) ^ salt).next(); };
  return *std::ranges::max_element(members, {}, [&](const NodeId& node) { return std::pair(score(node), node); });
}

}  // namespace gossamer::gossip
