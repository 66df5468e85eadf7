#include "peer/links/goodput_estimate.hpp"

#include <utility>
#include <vector>

namespace gossamer::peer {

void GoodputEstimate::observe(const Progress& progress, bool loaded, std::size_t window_bytes) {
  const TimeUs at = progress.arrived_at();
  const TimeUs since = std::exchange(loaded_at_, loaded ? at : 0);
  const std::uint64_t then = std::exchange(delivered_then_, progress.delivered);
  if (since == 0 || loaded_at_ < since) return;
  const bool limited = progress.last.limited;
  MeanRate& mean = limited ? limited_mean_ : waiting_mean_;
  if (mean.bytes == 0) mean.begun_at = progress.now;
  mean.took_us += at - since;
  mean.bytes += progress.delivered - then;
  const bool much = mean.took_us > 0 && mean.bytes >= std::max(goodput_windows * window_bytes, goodput_least_bytes);
  if (mean.took_us < goodput_span_us && (!much || progress.now - mean.begun_at < goodput_within_us)) return;
  const double found = static_cast<double>(mean.bytes) / static_cast<double>(mean.took_us) * us_per_s;
  mean = {};
  const double known = value(progress.now);
  if (limited && (known == 0 || found <= known)) return;
  if (known == 0) means_.clear();
  if (means_.size() == goodput_means) means_.pop_front();
  means_.push_back(found);
  seen_at_ = progress.now;
}

double GoodputEstimate::value(TimeUs now) const {
  if (means_.empty() || now - seen_at_ >= goodput_lifetime_us) return 0;
  std::vector<double> ordered(means_.begin(), means_.end());
  const auto middle = ordered.begin() + static_cast<std::ptrdiff_t>(ordered.size() / 2);
  std::ranges::nth_element(ordered, middle);
  return *middle;
}

}  // namespace gossamer::peer
