// A rate in bytes a second, kept over time: a token bucket that may go into debt by one message.
//
// What is sent is spent at once, whatever its size; nothing new is begun while there is debt. So a fragment larger than
// the bucket still passes, and the long-run rate holds. One owner, one thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

class ByteBudget {
 public:
  /// What may be saved up while nothing is sent: this long at the full rate.
  static constexpr TimeUs burst_us = 250 * us_per_ms;

  /// 0: no limit.
  explicit ByteBudget(double bytes_per_s = 0) : rate_(bytes_per_s) {}

  [[nodiscard]] double rate() const { return rate_; }
  void set_rate(double bytes_per_s) { rate_ = bytes_per_s; }

  /// May something new be begun?
  [[nodiscard]] bool open(TimeUs now_us) const { return rate_ <= 0 || level(now_us) >= 0; }
  /// May something be done that somebody else waits for? Within a debt as large as what may be saved up.
  [[nodiscard]] bool open_in_debt(TimeUs now_us) const { return rate_ <= 0 || level(now_us) >= -burst_bytes(); }
  void spend(std::size_t bytes, TimeUs now_us) {
    if (rate_ <= 0) return;
    level_ = level(now_us) - static_cast<double>(bytes);
    at_us_ = now_us;
  }

 private:
  [[nodiscard]] double burst_bytes() const { return rate_ * static_cast<double>(burst_us) / us_per_s; }
  [[nodiscard]] double level(TimeUs now_us) const {
    return std::min(burst_bytes(), level_ + rate_ * static_cast<double>(now_us - at_us_) / us_per_s);
  }

  double rate_;
  double level_ = 0;
  TimeUs at_us_ = 0;
};

}  // namespace gossamer::gossip
