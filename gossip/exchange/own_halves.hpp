// Notes about the exchanges that a node began; they outlive its daemon. They say which halves a fragment's corrections
// contain, and which halves they never will. These are values.

#pragma once

#include <array>
#include <cstdint>
#include <set>

namespace gossamer::gossip {

/// Commits are counted modulo this.
inline constexpr std::uint32_t commits_modulus = 1U << 23;
/// True if a count at `now` has reached `commits`. The two must be less than half the modulus apart.
[[nodiscard]] constexpr bool reached(std::uint32_t now, std::uint32_t commits) {
  return (now + commits_modulus - commits) % commits_modulus < commits_modulus / 2;
}

/// An exchange that the node began, and whether the corrections contain its half.
struct OwnHalf {
  static constexpr std::uint32_t never = commits_modulus;

  std::uint64_t counter = 0;      ///< names the exchange; 0: none
  std::uint32_t commits = never;  ///< the half counts once the fragment's count of commits has reached this

  [[nodiscard]] bool taken(std::uint32_t now) const { return commits != never && reached(now, commits); }
  friend bool operator==(const OwnHalf&, const OwnHalf&) = default;
};

/// The last two exchanges of a fragment. When a third begins, the result of the oldest is known for good.
using OwnHalves = std::array<OwnHalf, 2>;

/// Own exchanges that the node will never commit. Their responders may have committed the other half.
struct GivenUp {
  static constexpr std::size_t most = 511;

  std::set<std::uint64_t> counters = {};
  std::uint64_t floor = 0;  ///< nothing is known of exchanges up to this one

  void add(std::uint64_t counter) {
    counters.insert(counter);
    if (counters.size() <= most) return;
    floor = *counters.begin();
    counters.erase(counters.begin());
  }
};

}  // namespace gossamer::gossip
