#include "gossip/codec/influence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gossip/messages.hpp"

namespace gossamer::gossip {

namespace {

constexpr double excess_smoothing = 0.25;
constexpr double excess_log2_most = 2 * extra_shift_most;
constexpr double wild_excess_log2_most = 24;  // more is not needed, and is forgiven more slowly
constexpr double wild_power = 3;

std::uint32_t short_of(const NodeId& node) {
  return static_cast<std::uint32_t>(std::hash<NodeId>{}(node)*0x9e3779b97f4a7c15ULL >> 32);
}

}  // namespace

std::uint32_t voice_of(const NodeId& partner, Sponsor sponsor) {
  return sponsor == no_sponsor ? short_of(partner) : sponsor;
}

void DistanceRecord::observe(const NodeId& partner, double norm, Sponsor sponsor) {
  const std::uint32_t name = short_of(partner);
  Seen now{.partner = name,
           .voice = voice_of(partner, sponsor),
           .distance = static_cast<float>(std::min<double>(norm, std::numeric_limits<float>::max()))};
  const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(count_);
  auto replaced = std::find_if(seen_.begin(), end, [&](const Seen& seen) { return seen.partner == name; });
  if (replaced == end) {
    if (count_ < seen_.size()) {
      seen_[count_++] = now;
      return;
    }
    replaced = std::max_element(
        seen_.begin(), end, [this](const Seen& a, const Seen& b) { return with_voice(a.voice) < with_voice(b.voice); });
  } else {
    now.usual = replaced->usual;
  }
  std::move(replaced + 1, end, replaced);
  *(end - 1) = now;
}

void DistanceRecord::told(const NodeId& partner, float usual) {
  const std::span<Seen> all = std::span(seen_).first(count_);
  const auto its = std::ranges::find(all, short_of(partner), &Seen::partner);
  if (its != all.end()) its->usual = usual > 0 ? usual : std::numeric_limits<float>::infinity();
}

void DistanceRecord::forget(const NodeId& partner) {
  const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(count_);
  const auto left =
      std::remove_if(seen_.begin(), end, [name = short_of(partner)](const Seen& seen) { return seen.partner == name; });
  count_ = static_cast<std::size_t>(left - seen_.begin());
}

std::optional<float> DistanceRecord::told_median() const {
  const auto median = median_of(&Seen::usual, witnesses_least);
  return median && std::isfinite(*median) ? median : std::nullopt;
}

std::optional<float> DistanceRecord::median_of(float Seen::*what, std::size_t least) const {
  if (count_ < least) return std::nullopt;
  struct Counted {
    float value;
    double part;
  };
  std::array<Counted, remembered_partners> counted{};
  double all = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    counted[i] = {seen_[i].*what, 1 / static_cast<double>(with_voice(seen_[i].voice))};
    all += counted[i].part;
  }
  std::ranges::sort(std::span(counted).first(count_), {}, &Counted::value);
  constexpr double rounding = 1e-9;
  double below = 0;
  std::size_t i = 0;
  while ((below += counted[i].part) < all / 2 - rounding)
    ++i;
  return counted[i].value;
}

std::ptrdiff_t DistanceRecord::with_voice(std::uint32_t voice) const {
  return std::ranges::count(seen(), voice, &Seen::voice);
}

Witness DistanceRecord::witness(const NodeId& partner, Sponsor sponsor) const {
  const bool others = std::ranges::any_of(seen(), [&](const Seen& seen) { return seen.voice != sponsor; });
  const std::uint32_t name = sponsor != no_sponsor && others ? sponsor : short_of(partner);
  return {.partner = static_cast<std::uint16_t>(name), .alone = count_ < witnesses_least};
}

void ClipRecord::observe(double excess, bool loose) {
  const double log2 = std::min(std::log2(std::max(excess, 1.0)), loose ? wild_excess_log2_most : excess_log2_most);
  if (loose && log2 > loose_excess_log2 + 1) excess_log2_ = std::max(excess_log2_, log2);
  excess_log2_ += excess_smoothing * (log2 - excess_log2_);
}

int ClipRecord::extra_shift(bool loose) const {
  if (!loose) return std::min(static_cast<int>(excess_log2_), extra_shift_most);
  const double wild = std::max(excess_log2_ - loose_excess_log2, 0.0);
  return static_cast<int>(excess_log2_ - wild + wild_power * wild);
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
