#include "gossip/exchange/mixing.hpp"

#include <algorithm>
#include <cmath>

namespace gossamer::gossip {

namespace {

/// Smallest a ≥ 1 with 2^-a ≤ weight; weight in (0, 1].
int shift_within(float weight) {
  int shift = min_shift_bound;
  while (std::ldexp(1.0F, -shift) > weight)
    ++shift;
  return shift;
}

}  // namespace

int MixingBudget::own_shift() const {
  return shift_within(budget_ / 2);
}

int MixingBudget::begin_own() {
  const int shift = own_shift();
  own_ = std::ldexp(1.0F, -shift);
  answered_ = 0;
  return shift;
}

void MixingBudget::end_own() {
  own_ = 0;
  answered_ = 0;
}

std::optional<int> MixingBudget::answer_shift(bool crossing) const {
  // Without an own request, an answer may take half the budget. While one is out, each answer takes half of what is
  // left, so that a burst of requests finds smaller and smaller weights and the fragment does not overshoot.
  const float left = budget_ - answered_ - (crossing ? 0 : own_);
  if (left <= 0) return std::nullopt;
  if (std::ldexp(1.0F, -weakest_shift) > left / 2) return std::nullopt;
  return shift_within(left / 2);
}

void MixingBudget::answered(int shift) {
  if (own_under_way()) answered_ += std::ldexp(1.0F, -shift);
}

int age_shift(const Age& age) {
  if (age.cadence == 0) return 0;
  if (age.samples > 16 * age.cadence) return 2;
  return age.samples > 4 * age.cadence ? 1 : 0;
}

int noise_shift(double noise, double square, double normal) {
  if (!(square > 0)) return 0;
  const double signal = std::clamp(std::max(square - noise, normal), 0.0, square);
  const double variance = square - signal;
  // (1 − 2w)² + 4w²·v is equal at w = 2^-a and at half of that for v = 1/3, 5/3 and 13/3, where a = 1, 2, 3.
  if (3 * variance <= signal) return 0;
  if (3 * variance <= 5 * signal) return 1;
  return 3 * variance <= 13 * signal ? 2 : 3;
}

WeightShifts weight_shifts(double initiator, double responder, double chance) {
  const auto [less, more] = std::minmax(initiator, responder);
  if (!(more > 0)) return {};
  const auto shifts = [&](int shift) {
    return initiator > responder ? WeightShifts{.initiator = shift} : WeightShifts{.responder = shift};
  };
  if (!(less > 0)) return shifts(max_shift_bound);
  const double ratio = std::max(less / more, std::ldexp(1.0, -most_weight_shift));
  const int coarse = -std::ilogb(ratio);  // 2^-coarse ≤ ratio < 2^(1 - coarse)
  const bool rounds_up = chance < std::ldexp(ratio, coarse) - 1;
  return shifts(coarse - (rounds_up ? 1 : 0));
}

}  // namespace gossamer::gossip
