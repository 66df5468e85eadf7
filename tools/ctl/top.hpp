// The live view of `gossamerctl top`: keeps what the daemon has answered in the last while, and draws a screen of it.
//
// Pure: answers, times and the screen's size in, text out. Who asks, waits and owns the terminal: top_tool.cpp.

#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace gossamer::ctl {

/// Of a terminal, in characters.
struct Screen {
  std::size_t columns = 80;
  std::size_t rows = 24;
  bool colour = false;
  bool unicode = true;  ///< bars for sparklines; otherwise digits
};

/// A number over time, the newest last.
class Track {
 public:
  static constexpr std::size_t most = 60;

  void add(double value);
  /// The rate at which a counter has grown since it was added last. A smaller counter is a new daemon's.
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
  /// What the daemon has answered to "status", "peers" and "jobs", at a time that only grows. Throws json's exceptions
  /// if that is not what it answers.
  void add(double at_s, const nlohmann::json& status, const nlohmann::json& peers, const nlohmann::json& jobs);
  /// At most `screen.rows` lines of at most `screen.columns` characters; `note` stands at the bottom.
  [[nodiscard]] std::string render(const Screen& screen, const std::string& note) const;

 private:
  Track& track(const std::string& key);

  std::map<std::string, Track> tracks_;  // by what they are about
  std::map<std::string, Track> fresh_;   // those of the newest answers: what is gone is forgotten
  nlohmann::json node_;
  nlohmann::json peers_ = nlohmann::json::array();
  nlohmann::json jobs_ = nlohmann::json::array();
};

/// `line` up to so many characters; what steers the terminal does not count.
[[nodiscard]] std::string cut(const std::string& line, std::size_t columns);

}  // namespace gossamer::ctl
