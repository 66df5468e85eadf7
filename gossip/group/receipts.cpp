#include "gossip/group/receipts.hpp"

#include <algorithm>

namespace gossamer::gossip {

bool lacks(std::span<const Gap> gaps, const Standing& client) {
  if (client.kind != Standing::Kind::moved) return false;
  return client.into == 0 || std::ranges::any_of(gaps, [&](const Gap& gap) {
           return client.into > gap.newest && client.into <= gap.begun;
         });
}

}  // namespace gossamer::gossip
