// A rate in bytes a second, kept over time: a token bucket that may go into debt by one message.
//
// A message is charged at once, whatever its size. Nothing new is begun while there is debt. So a fragment larger than
// the bucket still passes, and the long-run rate holds. One owner, one thread.

#pragma once

#include <algorithm>

#include "gossip/types.hpp"

namespace gossamer::gossip {

class ByteBudget {
 public:
  enum class Spent { request, answer };

  /// While nothing is sent, this much time at the full rate is saved up.
  static constexpr TimeUs burst_us = 250 * us_per_ms;

  /// `bytes_per_s` 0: no limit. `burst`: how much may be saved up, as time at the full rate.
  explicit ByteBudget(double bytes_per_s = 0, TimeUs burst = burst_us) : rate_(bytes_per_s), saved_us_(burst) {}

  [[nodiscard]] double rate() const { return rate_; }
  void set_rate(double bytes_per_s) { rate_ = bytes_per_s; }

  /// True if something new may be begun. `ahead_bytes`: bytes that are not charged yet and will be spent before it.
  [[nodiscard]] bool open(TimeUs now_us, std::size_t ahead_bytes = 0) const {
    return rate_ <= 0 || level(now_us) >= static_cast<double>(ahead_bytes);
  }
  /// When open() becomes true, if nothing is spent until then.
  [[nodiscard]] TimeUs opens_at(TimeUs now_us) const {
    const double debt = rate_ <= 0 ? 0 : -level(now_us);
    return debt <= 0 ? now_us : now_us + static_cast<TimeUs>(debt / rate_ * us_per_s) + 1;
  }
  /// True if a message that another node waits for may be sent. The debt may be a full bucket, or `debt_bytes` if more.
  [[nodiscard]] bool open_in_debt(TimeUs now_us, std::size_t debt_bytes = 0) const {
    return rate_ <= 0 || level(now_us) >= -std::max(burst_bytes(), static_cast<double>(debt_bytes));
  }
  /// True if the node may begin something of its own, in messages of this size. While there is debt, it begins only in
  /// turn with answers. Otherwise nodes that ask for more than the rate would leave no bytes for its own requests.
  [[nodiscard]] bool may_begin(std::size_t message_bytes, TimeUs now_us) const {
    return open(now_us) || (last_ == Spent::answer && open_in_debt(now_us, 2 * message_bytes));
  }
  void spend(std::size_t bytes, TimeUs now_us, Spent on = Spent::request) {
    last_ = on;
    if (rate_ <= 0) return;
    level_ = level(now_us) - static_cast<double>(bytes);
    at_us_ = now_us;
  }

 private:
  [[nodiscard]] double burst_bytes() const { return rate_ * static_cast<double>(saved_us_) / us_per_s; }
  [[nodiscard]] double level(TimeUs now_us) const {
    return std::min(burst_bytes(), level_ + rate_ * static_cast<double>(now_us - at_us_) / us_per_s);
  }

  double rate_;
  TimeUs saved_us_;
  double level_ = 0;
  TimeUs at_us_ = 0;
  Spent last_ = Spent::request;
};

}  // namespace gossamer::gossip
