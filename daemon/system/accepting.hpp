// How many connections a listening socket accepts, and from whom.

#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <ranges>

#include "daemon/system/caller.hpp"

namespace gossamer::daemon {

/// The pause after a failed accept(), which would fail again at once (no descriptors left).
inline constexpr std::chrono::milliseconds accept_retry{200};
/// How many connections are accepted in one turn of the loop, and the pause after it: who connects again and again
/// takes little of the loop's time.
inline constexpr int max_accepts_per_turn = 16;
inline constexpr std::chrono::milliseconds accept_pause{10};

/// The part of a limit that all users together may take, without the owners (is_owner()): three quarters.
[[nodiscard]] constexpr auto part_for_others(std::unsigned_integral auto most) {
  return most - most / 4;
}

/// Whether the user may have one more of `most` connections. `users` are the users of the present ones. A quarter is
/// kept for the owners, and no other user gets more than half of the rest. So no user can lock out another, or root.
[[nodiscard]] bool may_connect(uid_t user, std::size_t most, std::ranges::input_range auto&& users) {
  std::size_t all = 0;
  std::size_t others = 0;
  std::size_t own = 0;
  for (const uid_t one : users) {
    ++all;
    others += is_owner(one) ? 0 : 1;
    own += one == user ? 1 : 0;
  }
  const std::size_t shared = part_for_others(most);
  return all < most && (is_owner(user) || (others < shared && own < shared / 2));
}

}  // namespace gossamer::daemon
