// The live view of `gossamerctl top`: keeps figures of the daemon's latest answers, and draws a screen of them.
//
// Pure: answers, times and the screen's size come in, text goes out. top_tool.cpp asks, waits and owns the terminal.

#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace gossamer::ctl {

/// The size of a terminal in characters.
struct Screen {
  std::size_t columns = 80;
  std::size_t rows = 24;
  bool colour = false;
  bool unicode = true;  ///< bars for sparklines, or else digits
};

/// A number over time, newest last.
class Track {
 public:
  static constexpr std::size_t most = 60;

  void add(double value);
  /// Adds the rate at which a counter has grown since the last call. A smaller counter comes from a new daemon.
  void add_counter(double at_s, double count);
  [[nodiscard]] double last() const { return values_.empty() ? 0 : values_.back(); }
  /// The last `width` values as bars from 0 to the largest of them.
  [[nodiscard]] std::string sparkline(std::size_t width, bool unicode) const;

 private:
  std::deque<double> values_;
  double counted_at_s_ = 0;
  double count_ = 0;
  bool counted_ = false;
};

class Top {
 public:
  /// Adds the daemon's answers to "status", "peers" and "jobs". `at_s` never decreases. Throws json's exceptions if
  /// these are not such answers.
  void add(double at_s, const nlohmann::json& status, const nlohmann::json& peers, const nlohmann::json& jobs);
  /// At most `screen.rows` lines of at most `screen.columns` characters, with `note` at the bottom.
  [[nodiscard]] std::string render(const Screen& screen, const std::string& note) const;

 private:
  Track& track(const std::string& key);

  std::map<std::string, Track> tracks_;  // the key says what the number is about
  std::map<std::string, Track> fresh_;   // the tracks in the newest answers; the others are forgotten
  nlohmann::json node_;
  nlohmann::json peers_ = nlohmann::json::array();
  nlohmann::json jobs_ = nlohmann::json::array();
};

/// `line` up to this many characters; control sequences of the terminal do not count.
[[nodiscard]] std::string cut(const std::string& line, std::size_t columns);

}  // namespace gossamer::ctl
