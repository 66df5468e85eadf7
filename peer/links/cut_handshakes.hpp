// Decides how soon a handshake that was cut off is tried again, within one attempt to connect.
//
// A listener that has no room for another stranger resets a connection (Listener::hang_up()). ZeroMQ ends a connection
// in order if it refuses the key. So a handshake that ends by a reset says nothing about the key, and is repeated with
// the same one, soon: where many strangers come, only some handshakes get through. The pauses double up to a bound,
// with jitter, and an attempt has most_cut_handshakes of them, so diallers do not become a flood themselves.
//
// Pure. One owner, one thread.

#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "gossip/random.hpp"
#include "peer/links/socket_events.hpp"

namespace gossamer::peer {

inline constexpr int most_cut_handshakes = 8;
inline constexpr std::chrono::milliseconds least_cut_pause{50};
inline constexpr std::chrono::milliseconds most_cut_pause{400};

class CutHandshakes {
 public:
  /// `seed`: different for each attempt, so that nodes do not come together.
  explicit CutHandshakes(std::uint64_t seed) : random_(seed) {}

  /// True if the connection was reset before its handshake was done.
  [[nodiscard]] static bool tells(const SocketEvent& event) {
    return event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && event.value == ECONNRESET;
  }
  /// A handshake was cut off: how long to wait before the next one. Nothing: there were enough of them.
  [[nodiscard]] std::optional<std::chrono::microseconds> pause() {
    if (count_ == most_cut_handshakes) return std::nullopt;
    const auto longest = std::min(least_cut_pause * (1 << count_), most_cut_pause);
    ++count_;
    return std::chrono::duration_cast<std::chrono::microseconds>(longest * (0.5 + 0.5 * random_.uniform()));
  }
  [[nodiscard]] bool any() const { return count_ > 0; }
  /// The attempt goes on elsewhere, or is over.
  void begin_anew() { count_ = 0; }

 private:
  gossip::Random random_;
  int count_ = 0;
};

}  // namespace gossamer::peer
