// How sockets that listen accept.

#pragma once

#include <chrono>

namespace gossamer::daemon {

/// The pause after a failed accept(), which would fail again at once (no descriptors left).
inline constexpr std::chrono::milliseconds accept_retry{200};
/// How many connections are accepted in one turn of the loop.
inline constexpr int max_accepts_per_turn = 16;

}  // namespace gossamer::daemon
