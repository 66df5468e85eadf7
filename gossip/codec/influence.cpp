#include "gossip/codec/influence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

namespace {

constexpr double excess_smoothing = 0.25;
constexpr double excess_log2_most = 2 * extra_shift_most;

std::uint32_t short_of(const NodeId& node) {
  return static_cast<std::uint32_t>(std::hash<NodeId>{}(node)*0x9e3779b97f4a7c15ULL >> 32);
}

}  // namespace

void DistanceRecord::observe(const NodeId& partner, double norm) {
  const auto distance = static_cast<float>(std::min<double>(norm, std::numeric_limits<float>::max()));
  const std::uint32_t name = short_of(partner);
  const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(count_);
  auto oldest = std::find_if(seen_.begin(), end, [&](const Seen& seen) { return seen.partner == name; });
  if (oldest == end) {
    if (count_ < seen_.size()) {
      seen_[count_++] = {.partner = name, .distance = distance};
      return;
    }
    oldest = seen_.begin();
  }
  std::move(oldest + 1, end, oldest);
  *(end - 1) = {.partner = name, .distance = distance};
}

void DistanceRecord::forget(const NodeId& partner) {
  const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(count_);
  const auto left =
      std::remove_if(seen_.begin(), end, [name = short_of(partner)](const Seen& seen) { return seen.partner == name; });
  count_ = static_cast<std::size_t>(left - seen_.begin());
}

std::optional<float> DistanceRecord::median() const {
  if (count_ < witnesses_least) return std::nullopt;
  std::array<float, remembered_partners> distances{};
  for (std::size_t i = 0; i < count_; ++i)
    distances[i] = seen_[i].distance;
  const auto middle = distances.begin() + static_cast<std::ptrdiff_t>((count_ - 1) / 2);
  std::nth_element(distances.begin(), middle, distances.begin() + static_cast<std::ptrdiff_t>(count_));
  return *middle;
}

Witness DistanceRecord::witness(const NodeId& partner) const {
  return {.partner = static_cast<std::uint16_t>(short_of(partner)), .alone = count_ < witnesses_least};
}

void ClipRecord::observe(double excess) {
  const double log2 = std::clamp(std::log2(std::max(excess, 1.0)), 0.0, excess_log2_most);
  excess_log2_ += excess_smoothing * (log2 - excess_log2_);
}

int ClipRecord::extra_shift() const {
  return std::min(static_cast<int>(excess_log2_), extra_shift_most);
}

double norm_of(std::span<const BlockOutcome> outcomes) {
  constexpr double elements = block_elements;
  double square = 0;
  for (const BlockOutcome& outcome : outcomes) {
    if (outcome.wide) continue;
    // If the sum of squares is beyond fp32, the sum of magnitudes is used: it is an upper bound on the norm.
    const bool known = outcome.mean_square < std::numeric_limits<float>::max() / static_cast<float>(block_elements);
    const double sum = elements * outcome.mean_abs;
    square += known ? elements * outcome.mean_square : sum * sum;
  }
  return std::sqrt(square);
}

int clip_shift(double norm, float threshold) {
  if (!(threshold > 0) || norm <= threshold) return min_shift_bound;
  int exponent = 0;
  const double fraction = std::frexp(norm / threshold, &exponent);  // = fraction · 2^exponent, fraction in [½, 1)
  return exponent + (fraction == 0.5 ? 0 : 1);
}

float lower_threshold(float a, float b) {
  if (!(a > 0)) return b;
  return b > 0 ? std::min(a, b) : a;
}

}  // namespace gossamer::gossip
