// Decides which lines of the log are held back because many were logged lately: many like them, or many of all kinds.
//
// A state machine without I/O: lines and time go in, decisions come out. Two lines are alike if they differ in numbers
// only. The first lines of a kind within `window` are logged, so many as the filter was made with. Further lines are
// counted, and the count is logged in one line when the window is over. Invariant: at most
// max_kinds kinds are remembered; beyond that the oldest kind is forgotten and its count is logged. One owner, one
// thread at a time (the log's sink has a mutex).

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer::daemon {

class RepeatFilter {
 public:
  using Time = std::chrono::system_clock::time_point;
  static constexpr std::chrono::seconds window{60};
  static constexpr std::size_t max_kinds = 256;

  explicit RepeatFilter(std::uint64_t burst) : burst_(burst) {}

  /// Whether the line is to be logged.
  [[nodiscard]] bool say(std::string_view line, Time now);

  /// A kind whose window is over. The number of its lines that were held back is to be logged now.
  struct HeldBack {
    std::string line;  ///< the first line of its kind
    std::uint64_t count;
  };
  [[nodiscard]] std::vector<HeldBack> over(Time now);

 private:
  struct Kind {
    std::string line;
    Time begun;
    std::uint64_t count = 0;
  };
  std::uint64_t burst_;
  std::map<std::string, Kind, std::less<>> kinds_;  // the key is the line without its numbers
  std::vector<HeldBack> forgotten_;                 // logged with the next line
};

/// Bounds what the log holds of all kinds of lines of one level together: whoever makes the daemon say something, again
/// and again and never the same, does not fill the disk. One owner, as above.
class LineBudget {
 public:
  using Time = RepeatFilter::Time;
  static constexpr double burst = 2000;
  static constexpr double per_s = 5;

  /// Whether there is room for another line.
  [[nodiscard]] bool take(Time now);
  /// How many found no room since this was asked last.
  [[nodiscard]] std::uint64_t take_left_out() { return std::exchange(left_out_, 0); }

 private:
  double lines_ = burst;
  std::optional<Time> last_;
  std::uint64_t left_out_ = 0;
};

}  // namespace gossamer::daemon
