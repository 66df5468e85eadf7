// Makes whole lines of what a client writes, so that lines of several clients do not run into each other.
//
// Pure: bytes and the time come in, lines go out. A carriage return, as a progress bar writes it, ends a line too, but
// of such lines at most one in progress_period_s is told: the latest.

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
  /// Takes a line without its end.
  using Tell = std::function<void(std::string_view line)>;

  void add(std::string_view bytes, double now_s, const Tell& tell);
  /// No more comes: tells what is left, complete or not.
  void end(const Tell& tell);

 private:
  void progress(double now_s, const Tell& tell);

  std::string line_;            // begun
  bool returned_ = false;       // the last byte was a carriage return: line_ ends, or is overwritten by what comes
  bool has_been_told_ = false;  // line_, while returned_
  double told_s_ = -progress_period_s;
};

}  // namespace gossamer::ctl
