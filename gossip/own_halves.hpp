// What a node remembers, beyond its daemon's death, of the exchanges that it began: which halves a fragment's corrections
// contain. Values.

#pragma once

#include <array>
#include <cstdint>

namespace gossamer::gossip {

/// An initiator's half that is in the corrections, if the fragment's count of commits has come to `commits`.
struct OwnHalf {
  std::uint64_t counter = 0;  ///< of the exchange; 0: none
  std::uint32_t commits = 0;

  friend bool operator==(const OwnHalf&, const OwnHalf&) = default;
};

/// Of one fragment: the last two, since a death may keep the commit of the later from being stored.
using OwnHalves = std::array<OwnHalf, 2>;

}  // namespace gossamer::gossip
