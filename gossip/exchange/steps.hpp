// The choice of the quantiser step, from what a node has learned of the disagreement between its replica and others.
//
// Three estimates are kept. Each block has a mean |y_j − y_i| over its exchanges (the observed |s·D| is unbiased
// because the dither is shared). Each link has a factor on it (a slow or distant node disagrees more). The time since
// the last exchange gives another factor. The step makes the codec's range `range` times the product: a tighter range
// costs more wide blocks, a wider one more noise.
//
// The estimates also limit what a partner may do (gossip/codec/influence.hpp), so a partner must not set them at will:
// one partner alone raises an estimate by at most `raise_most`, until exchanges with another one raise it as well.
//
// BlockSteps belongs to one fragment. Only the holder of the fragment uses it (the loop, or one task on a worker).

#pragma once

#include "gossip/codec/influence.hpp"
#include "gossip/exchange/device.hpp"

namespace gossamer::gossip {

/// Default of a codec's range over the mean disagreement. Experiments with q8 and q4 show no difference from 10 to 15.
inline constexpr float default_range = 12.0F;

/// A difference beyond the range by more than this many powers of two is not accepted, whether it comes from a step
/// that would need it or from an f32 value.
inline constexpr int limit_tolerance = 8;
/// Largest link factor that counts in this limit. It is bounded because the partner itself teaches that factor.
inline constexpr float limit_factor_most = 64.0F;
/// Largest link factor that counts in the distance for clipping, where no better distance is known.
inline constexpr float expected_factor_most = 4.0F;
/// Largest factor by which one partner may raise an estimate that other partners do not raise.
inline constexpr float raise_most = 64.0F;

class BlockSteps {
 public:
  explicit BlockSteps(std::size_t block_count)
      : mean_(block_count, 0.0F), tail_(block_count, 1.0F), raised_(block_count) {}

  /// For a fragment without observations: expects 1/32 of each block's mean magnitude as the disagreement. A wrong
  /// guess costs one wide exchange or some noise. Blocks that cannot be read are left out; if none can be read, the
  /// steps stay unprimed. `y` is in the device's memory.
  void prime(const FragmentView& y, const Device& device);
  [[nodiscard]] bool primed() const { return primed_; }

  /// Step exponents for the listed blocks. `factor` is the link's factor times the growth since the last exchange.
  void exponents(Codec codec, float range, float factor, std::span<const std::uint32_t> blocks,
                 std::span<std::int8_t> out) const;
  /// The exponent for one block.
  [[nodiscard]] int exponent(Codec codec, float range, float factor, std::uint32_t block) const;

  /// The limit: 2^limit is the largest difference that the block accepts from anyone. It is 2^limit_tolerance · `range`
  /// times the expected disagreement, which counts as at least 2^-16 of the fragment's mean magnitude.
  [[nodiscard]] int limit_exponent(float range, float factor, std::uint32_t block) const;

  /// The expected 2-norm of a difference over the listed blocks. For normal differences the mean square is π/2 times
  /// the squared mean magnitude. An estimate that one partner alone has raised hardly counts.
  [[nodiscard]] double expected_norm(float factor, std::span<const std::uint32_t> blocks) const;

  /// Learns from an exchange. `factor` is the one that its steps were chosen with. Returns the observed mean over the
  /// expected mean, over blocks in range; 0 if there is nothing to compare.
  float observe(std::span<const std::uint32_t> blocks, std::span<const BlockOutcome> outcomes, float factor,
                const Witness& witness = {});

  /// A responder found the block's step too coarse by `halvings` powers of two: lowers the estimate, within a bound.
  void refine(std::uint32_t block, int halvings);

  /// Mean of the estimates over all blocks, for tests.
  [[nodiscard]] float mean() const;

 private:
  /// The last partner that raised a block's estimate, and the estimate before that.
  struct Raised {
    float base = 0;
    std::uint16_t partner = 0;
    bool alone = true;
  };
  [[nodiscard]] float raise(std::uint32_t block, float wanted, const Witness& witness);

  std::vector<float> mean_;
  std::vector<float> tail_;  // widens a block's range: 1 to tail_max
  std::vector<Raised> raised_;
  float floor_ = 0;  // smallest disagreement that is not zero: growth starts there
  bool primed_ = false;
};

/// One link's factor on the block estimates, learned from the results of BlockSteps::observe.
class LinkFactor {
 public:
  [[nodiscard]] float value() const { return value_; }
  void observe(float ratio, float wide_fraction);

 private:
  float value_ = 1.0F;
};

}  // namespace gossamer::gossip
