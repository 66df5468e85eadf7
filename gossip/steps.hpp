// How large a quantiser step to take: what a node has learned of the disagreement between its replica and the others'.
//
// Each block keeps an estimate of the mean |y_j − y_i| met in its exchanges (the observed |s·D| is unbiased thanks to
// the shared dither), each link a factor on it (a slow or distant node disagrees more than the rest), and the time
// since the last exchange another. The step is chosen so that the codec's range is `range` times that mean: a tighter
// range costs more wide blocks, a wider one more noise.
//
// BlockSteps belongs to one fragment and is touched by whoever holds the fragment (the loop, or one task on a worker).

#pragma once

#include "gossip/lattice.hpp"

namespace gossamer::gossip {

/// Range of a codec over the mean disagreement, unless configured. 10 to 15 is flat in experiments with q8 and q4.
inline constexpr float default_range = 12.0F;

class BlockSteps {
 public:
  explicit BlockSteps(std::size_t block_count) : mean_(block_count, 0.0F), tail_(block_count, 1.0F) {}

  /// Before anything has been observed: takes a 1/32 of each block's mean magnitude as the disagreement to expect.
  /// A wrong guess costs one wide exchange or some noise.
  void prime(const FragmentView& y);
  [[nodiscard]] bool primed() const { return primed_; }

  /// Step exponents for the blocks listed. `factor` is the link's, times the growth since the last exchange.
  void exponents(Codec codec, float range, float factor, std::span<const std::uint32_t> blocks,
                 std::span<std::int8_t> out) const;
  /// The exponent for one block.
  [[nodiscard]] int exponent(Codec codec, float range, float factor, std::uint32_t block) const;

  /// Learns from an exchange. `factor` as given when its steps were chosen.
  /// Returns the observed mean over the expected mean, over blocks in range; 0 if there is nothing to compare.
  float observe(std::span<const std::uint32_t> blocks, std::span<const BlockOutcome> outcomes, float factor);

  /// A responder took the block's step for `halvings` powers of two too coarse: expects less, within a bound.
  void refine(std::uint32_t block, int halvings);

  /// Mean over blocks of the estimate: what a node reports as its disagreement with the others.
  [[nodiscard]] float mean() const;

 private:
  std::vector<float> mean_;
  std::vector<float> tail_;  // 1 to tail_max
  bool primed_ = false;
};

/// One link's factor on the block estimates, learned from the ratios that BlockSteps::observe returns.
class LinkFactor {
 public:
  [[nodiscard]] float value() const { return value_; }
  void observe(float ratio, float wide_fraction);

 private:
  float value_ = 1.0F;
};

}  // namespace gossamer::gossip
