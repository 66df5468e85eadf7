// Makes whole lines of a client's output, so that lines of several clients do not run into each other.
//
// Pure: bytes and the time come in, lines go out. A carriage return, which progress bars write, also ends a line. At
// most one such line in progress_period_s is told.

#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace gossamer::ctl {

/// A longer line is told in pieces of this size.
inline constexpr std::size_t max_line_piece_bytes = 64 * 1024;
inline constexpr double progress_period_s = 1;

class Lines {
 public:
  /// Receives a line without its end.
  using Tell = std::function<void(std::string_view line)>;

  void add(std::string_view bytes, double now_s, const Tell& tell);
  /// There is no more output: tells the rest, complete or not.
  void end(const Tell& tell);

 private:
  void progress(double now_s, const Tell& tell);

  std::string line_;            // the line that has begun
  bool returned_ = false;       // the last byte was a carriage return, so line_ either ends or is overwritten
  bool has_been_told_ = false;  // whether line_ was told as progress; counts only while returned_
  double told_s_ = -progress_period_s;
};

}  // namespace gossamer::ctl
