#include "gossip/exchange/steps.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

namespace gossamer::gossip {

namespace {

constexpr float prime_fraction = 1.0F / 32;
constexpr float floor_fraction = 0x1p-16F;  // of the fragment's mean magnitude
constexpr int zeros_limit = 10;             // limit for a fragment of zeros without any exchange: it has no scale
constexpr float mean_smoothing = 0.25F;     // weight of one observation
constexpr float wide_growth = 2.0F;         // a block out of range disagreed more than was expected
constexpr float tail_growth = 1.5F;         // further growth at each time out of range
constexpr float tail_decay = 0.99F;         // at each time in range: about one in forty may be out of range
constexpr float tail_max = 8.0F;
constexpr float unconfirmed_growth = 2.0F;  // how much one partner alone can raise the expected distance
constexpr int refine_most = 6;              // powers of two at once, since the responder that asks may be wrong
constexpr float mean_max = 0x1p+96F;        // so that no product with range, factor and growth overflows
constexpr float factor_smoothing = 0.15F;   // slower than the blocks, which learn what all links have in common
constexpr float factor_min = 1.0F / 16;
constexpr float factor_max = 65536.0F;
constexpr float wide_fraction_alarm = 0.25F;  // with a larger fraction out of range, the link's factor is too small

/// Number of blocks that are read together: this needs few calls of the device and little memory.
constexpr std::size_t blocks_at_once = 256;

float mean_magnitude(std::span<const float> block) {
  float sum = 0;
  for (const float value : block)
    sum += std::fabs(value);
  return std::isfinite(sum) ? sum / block_elements : 0.0F;
}

/// Writes the mean magnitudes of these blocks; blocks that cannot be read keep their old value. Returns the number
/// read.
std::size_t mean_magnitudes(const FragmentView& y, const Device& device, std::span<const std::uint32_t> blocks,
                            std::span<float> means) {
  std::vector<float> values(blocks.size() * block_elements);
  if (device.read(y, blocks, values)) {
    for (std::size_t i = 0; i < blocks.size(); ++i)
      means[i] = mean_magnitude(std::span(values).subspan(i * block_elements, block_elements));
    return blocks.size();
  }
  if (blocks.size() == 1) return 0;
  std::size_t had = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    had += mean_magnitudes(y, device, blocks.subspan(i, 1), means.subspan(i, 1));
  return had;
}

}  // namespace

void BlockSteps::prime(const FragmentView& y, const Device& device) {
  std::vector<float> means(mean_.size());
  std::vector<std::uint32_t> blocks;
  std::size_t had = 0;
  for (std::size_t first = 0; first < means.size(); first += blocks.size()) {
    blocks.resize(std::min(blocks_at_once, means.size() - first));
    std::iota(blocks.begin(), blocks.end(), static_cast<std::uint32_t>(first));
    had += mean_magnitudes(y, device, blocks, std::span(means).subspan(first, blocks.size()));
  }
  if (had == 0) return;
  float total = 0;
  for (std::size_t block = 0; block < means.size(); ++block) {
    mean_[block] = means[block] * prime_fraction;
    total += means[block] / static_cast<float>(means.size());
  }
  floor_ = std::isfinite(total) ? total * floor_fraction : 0.0F;
  primed_ = true;
}

int BlockSteps::exponent(Codec codec, float range, float factor, std::uint32_t block) const {
  if (codec == Codec::f32) return 0;
  const float half_range = static_cast<float>(1 << (codec_bits(codec) - 1));
  const float step = range * tail_[block] * mean_[block] * factor / half_range;
  if (!(step > 0)) return min_step_exponent;  // the encoder raises it as far as the magnitudes need
  int e = 0;
  const float fraction = std::frexp(step, &e);  // step = fraction · 2^e with fraction in [½, 1)
  if (fraction == 0.5F) --e;
  return std::clamp(e, min_step_exponent, max_step_exponent);
}

void BlockSteps::exponents(Codec codec, float range, float factor, std::span<const std::uint32_t> blocks,
                           std::span<std::int8_t> out) const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    out[i] = static_cast<std::int8_t>(exponent(codec, range, factor, blocks[i]));
  }
}

int BlockSteps::limit_exponent(float range, float factor, std::uint32_t block) const {
  const float reach = range * tail_[block] * std::max(mean_[block], floor_) * std::min(factor, limit_factor_most);
  if (!(reach > 0)) return zeros_limit;
  int e = 0;
  const float fraction = std::frexp(reach, &e);
  if (fraction == 0.5F) --e;
  return std::clamp(e + limit_tolerance, min_step_exponent, max_step_exponent);
}

double BlockSteps::expected_norm(float factor, std::span<const std::uint32_t> blocks) const {
  double square = 0;
  for (const std::uint32_t block : blocks) {
    float mean = std::max(mean_[block], floor_);
    const Raised& raised = raised_[block];
    if (!raised.alone) mean = std::min(mean, unconfirmed_growth * raised.base);
    square += std::numbers::pi / 2 * block_elements * double{mean} * mean;
  }
  return std::sqrt(square) * std::min(factor, expected_factor_most);
}

float BlockSteps::raise(std::uint32_t block, float wanted, const Witness& witness) {
  const float mean = mean_[block];
  if (wanted <= mean) return wanted;
  Raised& raised = raised_[block];
  if (witness.alone || raised.alone || raised.partner != witness.partner) {
    raised = {.base = std::max(mean, floor_), .partner = witness.partner, .alone = witness.alone};
  }
  return witness.alone ? wanted : std::clamp(raised.base * raise_most, mean, wanted);
}

float BlockSteps::observe(std::span<const std::uint32_t> blocks, std::span<const BlockOutcome> outcomes, float factor,
                          const Witness& witness) {
  double observed = 0;
  double expected = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    float& mean = mean_[blocks[i]];
    float& tail = tail_[blocks[i]];
    if (outcomes[i].wide) {
      tail = std::min(tail * tail_growth, tail_max);
      mean = raise(blocks[i], std::min(std::max(mean, floor_) * wide_growth, mean_max), witness);
      continue;
    }
    tail = std::max(tail * tail_decay, 1.0F);
    observed += outcomes[i].mean_abs;
    expected += mean * factor;
    const float seen = std::min(outcomes[i].mean_abs / factor, mean_max);
    mean = raise(blocks[i], mean + mean_smoothing * (seen - mean), witness);
  }
  return expected > 0 ? static_cast<float>(observed / expected) : 0.0F;
}

void BlockSteps::refine(std::uint32_t block, int halvings) {
  mean_[block] = std::ldexp(mean_[block], -std::clamp(halvings, 0, refine_most));
}

float BlockSteps::mean() const {
  double sum = 0;
  for (const float mean : mean_)
    sum += mean;
  return mean_.empty() ? 0.0F : static_cast<float>(sum / static_cast<double>(mean_.size()));
}

void LinkFactor::observe(float ratio, float wide_fraction) {
  if (wide_fraction > wide_fraction_alarm) value_ *= wide_growth;
  if (ratio > 0) value_ *= std::pow(std::clamp(ratio, 1.0F / 16, 16.0F), factor_smoothing);
  value_ = std::clamp(value_, factor_min, factor_max);
}

}  // namespace gossamer::gossip
