// Which member owns a fragment: the one whose hash with the fragment is largest (rendezvous hashing, Thaler &
// Ravishankar 1998, "Using name-based mappings to increase hit rates"). Each owns about as many fragments as the
// others. When a member goes, only its fragments get other owners. Any thread.

#pragma once

#include <algorithm>
#include <vector>

#include "gossip/average_messages.hpp"
#include "gossip/random.hpp"

namespace gossamer::gossip {

[[nodiscard]] inline std::uint64_t word_of(const NodeId& node) {
  return std::hash<NodeId>{}(node);
}
[[nodiscard]] inline std::uint64_t word_of(const Participant& participant) {
  return word_of(participant.node) ^ Random(participant.life).next();
}

/// `members`: at least one.
template <class Member>
[[nodiscard]] Member owner_of(std::uint32_t fragment, const std::vector<Member>& members) {
  const std::uint64_t salt = Random(fragment).next();
  const auto score = [salt](const Member& member) { return Random(word_of(member) ^ salt).next(); };
  return *std::ranges::max_element(members, {}, [&](const Member& one) { return std::pair(score(one), one); });
}

}  // namespace gossamer::gossip
