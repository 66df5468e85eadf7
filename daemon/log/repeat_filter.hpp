// Which lines of the log are held back, because the like of them has been said often lately.
//
// A state machine without I/O: lines and time in, decisions out. Two lines are alike if they differ in numbers only.
// The first `burst` of a kind within `window` are said; what comes beyond is counted, and told of in one line when the
// window is over and anything else is logged. Invariant: at most max_kinds kinds are remembered; with more, those are
// forgotten that began first, with what was counted of them said. One owner, one thread at a time (the log's sink has a
// mutex).

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gossamer::daemon {

class RepeatFilter {
 public:
  using Time = std::chrono::system_clock::time_point;
  static constexpr std::uint64_t burst = 5;
  static constexpr std::chrono::seconds window{60};
  static constexpr std::size_t max_kinds = 256;

  /// Whether the line is to be said.
  [[nodiscard]] bool say(std::string_view line, Time now);

  /// What was held back of kinds whose window is over: to be said now.
  struct HeldBack {
    std::string line;  ///< the first of its kind
    std::uint64_t count;
  };
  [[nodiscard]] std::vector<HeldBack> over(Time now);

 private:
  struct Kind {
    std::string line;
    Time begun;
    std::uint64_t count = 0;
  };
  std::map<std::string, Kind, std::less<>> kinds_;  // by the line without its numbers
  std::vector<HeldBack> forgotten_;                 // to be said with the next
};

}  // namespace gossamer::daemon
