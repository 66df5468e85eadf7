// How sockets that listen accept, and whom.

#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <ranges>

#include "daemon/system/caller.hpp"

namespace gossamer::daemon {

/// The pause after a failed accept(), which would fail again at once (no descriptors left).
inline constexpr std::chrono::milliseconds accept_retry{200};
/// How many connections are accepted in one turn of the loop.
inline constexpr int max_accepts_per_turn = 16;

/// What the owners leave to all other users: three quarters.
[[nodiscard]] constexpr auto part_for_others(std::unsigned_integral auto most) {
  return most - most / 4;
}

/// Whether the user may have one more of `most` connections, `users` having the others. The owners keep a quarter of
/// them for themselves, and of the rest nobody has more than half: no user of the group locks out another, or root.
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
