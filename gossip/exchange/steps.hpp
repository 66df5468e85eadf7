// How large a quantiser step to take: what a node has learned of the disagreement between its replica and the others'.
//
// Each block keeps an estimate of the mean |y_j − y_i| met in its exchanges (the observed |s·D| is unbiased thanks to
// the shared dither), each link a factor on it (a slow or distant node disagrees more than the rest), and the time
// since the last exchange another. The step is chosen so that the codec's range is `range` times that mean: a tighter
// range costs more wide blocks, a wider one more noise.
//
// What is learned also bounds what a partner may do (gossip/codec/influence.hpp), so that no partner may teach a node
// at will: one partner alone raises an estimate by no more than `raise_most`, until another one's exchanges raise it,
// too.
//
// BlockSteps belongs to one fragment and is touched by whoever holds the fragment (the loop, or one task on a worker).

#pragma once

#include "gossip/codec/influence.hpp"
#include "gossip/exchange/device.hpp"

namespace gossamer::gossip {

/// Range of a codec over the mean disagreement, unless configured. 10 to 15 is flat in experiments with q8 and q4.
inline constexpr float default_range = 12.0F;

/// No difference beyond the range by more than this many powers of two is taken for one: neither a step that would need
/// it, nor an f32 value.
inline constexpr int limit_tolerance = 8;
/// What a link's factor counts for in that, at most: it is the partner itself that teaches it.
inline constexpr float limit_factor_most = 64.0F;
/// And in the distance that is clipped to, for want of a better one.
inline constexpr float expected_factor_most = 4.0F;
/// How much one partner may raise an estimate that other partners do not raise.
inline constexpr float raise_most = 64.0F;

class BlockSteps {
 public:
  explicit BlockSteps(std::size_t block_count)
      : mean_(block_count, 0.0F), tail_(block_count, 1.0F), raised_(block_count) {}

  /// Before anything has been observed: takes a 1/32 of each block's mean magnitude as the disagreement to expect.
  /// A wrong guess costs one wide exchange or some noise. Nothing is taken of a block that is not to be had, and it is
  /// not done if there is none at all. `y` is the device's memory.
  void prime(const FragmentView& y, const Device& device);
  [[nodiscard]] bool primed() const { return primed_; }

  /// Step exponents for the blocks listed. `factor` is the link's, times the growth since the last exchange.
  void exponents(Codec codec, float range, float factor, std::span<const std::uint32_t> blocks,
                 std::span<std::int8_t> out) const;
  /// The exponent for one block.
  [[nodiscard]] int exponent(Codec codec, float range, float factor, std::uint32_t block) const;

  /// The limit: 2^this is the largest difference that the block takes from anyone, that is 2^limit_tolerance times the
  /// range over the disagreement expected, which is taken to be at least 2^-16 of the fragment's mean magnitude.
  [[nodiscard]] int limit_exponent(float range, float factor, std::uint32_t block) const;

  /// The 2-norm of a difference as large as is expected, over the blocks listed: π/2 times the mean magnitude squared
  /// is the mean square of normal differences.
  /// What one partner alone has raised an estimate to hardly counts.
  [[nodiscard]] double expected_norm(float factor, std::span<const std::uint32_t> blocks) const;

  /// Learns from an exchange. `factor` as given when its steps were chosen.
  /// Returns the observed mean over the expected mean, over blocks in range; 0 if there is nothing to compare.
  float observe(std::span<const std::uint32_t> blocks, std::span<const BlockOutcome> outcomes, float factor,
                const Witness& witness = {});

  /// A responder took the block's step for `halvings` powers of two too coarse: expects less, within a bound.
  void refine(std::uint32_t block, int halvings);

  /// Mean over blocks of the estimate: what a node reports as its disagreement with the others.
  [[nodiscard]] float mean() const;

 private:
  /// Who raised a block's estimate last, and what it was before.
  struct Raised {
    float base = 0;
    std::uint16_t partner = 0;
    bool alone = true;
  };
  [[nodiscard]] float raise(std::uint32_t block, float wanted, const Witness& witness);

  std::vector<float> mean_;
  std::vector<float> tail_;  // 1 to tail_max
  std::vector<Raised> raised_;
  float floor_ = 0;  // of a disagreement that is not zero: where growth starts
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
