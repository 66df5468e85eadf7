// Which member owns a fragment: the one whose hash with the fragment is largest (rendezvous hashing, Thaler &
// Ravishankar 1998, "Using name-based mappings to increase hit rates"). Each owns about as many fragments as the
// others. When a member goes, only its fragments get other owners. Any thread.

#pragma once

#include <algorithm>
#include <span>

#include "gossip/average_messages.hpp"
#include "gossip/random.hpp"

namespace gossamer::gossip {

/// `members`: at least one.
[[nodiscard]] inline Participant owner_of(std::uint32_t fragment, std::span<const Participant> members) {
  const std::uint64_t salt = Random(fragment).next();
  const auto score = [salt](const Participant& member) {
    return Random(std::hash<NodeId>{}(member.node) ^ Random(member.life).next() ^ salt).next();
  };
  return *std::ranges::max_element(members, {}, [&](const Participant& one) { return std::pair(score(one), one); });
}

}  // namespace gossamer::gossip
