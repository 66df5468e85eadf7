// What a node remembers, beyond its daemon's death, of the exchanges that it began: which halves a fragment's
// corrections contain, and which its corrections never will. Values.

#pragma once

#include <array>
#include <cstdint>
#include <set>

namespace gossamer::gossip {

/// Commits are counted modulo this.
inline constexpr std::uint32_t commits_modulus = 1U << 23;
/// A count that stands at `now` has come to `commits`, which is not half the modulus away.
[[nodiscard]] constexpr bool reached(std::uint32_t now, std::uint32_t commits) {
  return (now + commits_modulus - commits) % commits_modulus < commits_modulus / 2;
}

/// An exchange that the node began, and whether its half is in the corrections.
struct OwnHalf {
  static constexpr std::uint32_t never = commits_modulus;

  std::uint64_t counter = 0;      ///< of the exchange; 0: none
  std::uint32_t commits = never;  ///< it is, once the fragment's count of commits has come to this

  [[nodiscard]] bool taken(std::uint32_t now) const { return commits != never && reached(now, commits); }
  friend bool operator==(const OwnHalf&, const OwnHalf&) = default;
};

/// Of one fragment: the last two. What became of the older is known for good when a third is begun.
using OwnHalves = std::array<OwnHalf, 2>;

/// Exchanges of a node's own that it has never taken and never will, though they may have been answered.
struct GivenUp {
  static constexpr std::size_t most = 511;

  std::set<std::uint64_t> counters = {};
  std::uint64_t floor = 0;  ///< of those up to this one nothing is known

  void add(std::uint64_t counter) {
    counters.insert(counter);
    if (counters.size() <= most) return;
    floor = *counters.begin();
    counters.erase(counters.begin());
  }
};

}  // namespace gossamer::gossip
