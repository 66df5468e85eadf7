#include "tools/ctl/run/lines.hpp"

#include <algorithm>

namespace gossamer::ctl {

void Lines::progress(double now_s, const Tell& tell) {
  has_been_told_ = now_s - told_s_ >= progress_period_s && !line_.empty();
  if (!has_been_told_) return;
  told_s_ = now_s;
  tell(line_);
}

void Lines::add(std::string_view bytes, double now_s, const Tell& tell) {
  while (!bytes.empty()) {
    const char first = bytes.front();
    if (first == '\n') {
      // A line that was told as progress is not told again.
      if (!(returned_ && has_been_told_)) tell(line_);
      line_.clear();
      returned_ = false;
      bytes.remove_prefix(1);
    } else if (first == '\r') {
      // A second carriage return in a row, as before a line's end, changes nothing.
      if (!returned_) progress(now_s, tell);
      returned_ = true;
      bytes.remove_prefix(1);
    } else {
      if (returned_) line_.clear();
      returned_ = false;
      if (line_.size() == max_line_piece_bytes) {
        tell(line_);
        line_.clear();
      }
      const std::size_t room = max_line_piece_bytes - line_.size();
      const std::size_t taken = std::min({bytes.find_first_of("\r\n"), bytes.size(), room});
      line_ += bytes.substr(0, taken);
      bytes.remove_prefix(taken);
    }
  }
}

void Lines::end(const Tell& tell) {
  if (!line_.empty() && !(returned_ && has_been_told_)) tell(line_);
  line_.clear();
  returned_ = false;
}

}  // namespace gossamer::ctl
