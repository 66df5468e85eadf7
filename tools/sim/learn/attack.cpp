#include "tools/sim/learn/attack.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tools/sim/learn/experiment.hpp"

namespace gossamer::sim {

namespace {

constexpr float extreme_weight = 1e6F;
constexpr float extreme_value = 1e30F;
constexpr float dissensus_strength = 4;
constexpr double pull_strength = 0.5;

Bytes filled_floats(std::size_t bytes, float value) {
  return Bytes::adopt(std::vector<float>(bytes / sizeof(float), value));
}

}  // namespace

Attacker::Attacker(AttackKind kind, float wild_value, std::span<const float> initial, std::uint64_t seed)
    : kind_(kind), wild_value_(wild_value), initial_(initial.begin(), initial.end()), random_(seed) {}

void Attacker::corrupt(std::span<float> model, std::span<const std::span<const float>> honest) {
  switch (kind_) {
    case AttackKind::extremes:
      for (float& value : model)
        value = random_.below(2) == 0 ? extreme_weight : -extreme_weight;
      break;
    case AttackKind::wild:
      std::ranges::fill(model, wild_value_);
      break;
    case AttackKind::flipped: {
      const auto mean = mean_of(honest);
      std::transform(mean.begin(), mean.end(), model.begin(), [](float value) { return -value; });
      break;
    }
    case AttackKind::dissensus: {
      const auto mean = mean_of(honest);
      const auto& one = honest[random_.below(honest.size())];
      for (std::size_t e = 0; e < model.size(); ++e)
        model[e] = mean[e] + dissensus_strength * (mean[e] - one[e]);
      break;
    }
    case AttackKind::pull: {
      const auto mean = mean_of(honest);
      double square = 0;
      for (const float value : mean)
        square += double{value} * value;
      const auto each = static_cast<float>(pull_strength * std::sqrt(square / static_cast<double>(mean.size())));
      for (std::size_t e = 0; e < model.size(); ++e)
        model[e] = mean[e] + (e % 2 == 0 ? each : -each);
      break;
    }
    case AttackKind::old:
      std::copy(initial_.begin(), initial_.end(), model.begin());
      break;
    case AttackKind::none:
    case AttackKind::silent:
    case AttackKind::ascent:  // its training step does this
    case AttackKind::nan:     // tamper() puts NaN into messages, because a model with NaN would not leave its daemon
      break;
  }
}

bool Attacker::tamper(Message& message) {
  if (kind_ == AttackKind::silent) return false;
  if (kind_ != AttackKind::extremes && kind_ != AttackKind::nan) return true;
  const bool nan = kind_ == AttackKind::nan;
  const float sign = random_.below(2) == 0 ? 1.0F : -1.0F;
  const float bad = !nan                    ? sign * extreme_value
                    : random_.below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                            : sign * std::numeric_limits<float>::infinity();
  if (auto* request = std::get_if<ExchangeRequest>(&message); request != nullptr && request->codec == Codec::f32) {
    request->values = filled_floats(request->values.size(), bad);
  }
  auto* reply = std::get_if<ExchangeReply>(&message);
  if (reply == nullptr || reply->status != ReplyStatus::done) return true;
  if (reply->codec == Codec::f32) {
    reply->differences = filled_floats(reply->differences.size(), bad);
  } else if (!nan) {
    const int edge = sign > 0 ? 0x77 : 0x88;  // the largest values in 4 bits, and large ones in 8 bits
    reply->differences = Bytes::adopt(std::vector<std::byte>(reply->differences.size(), static_cast<std::byte>(edge)));
    reply->shift = min_shift_bound;
    reply->wide = {};
    reply->asked = {};
  }
  return true;
}

}  // namespace gossamer::sim
