#include "gossip/exchange/exchange.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "gossip/check.hpp"
#include "gossip/codec/frame_buffer.hpp"
#include "gossip/exchange/mixing.hpp"

namespace gossamer::gossip {

namespace {

/// A responder asks for a wide block's exponent to be raised by at least widen_least and at most widen_most. For a
/// block refused for its coarse step, it asks for `widen_least` above its own estimate, as far as it accepts that.
constexpr int widen_least = 2;
constexpr int widen_most = 6;
/// For pushes. Both are powers of two of a step over the root mean square of a block's change. A coarser step than
/// `noise_limit` is refused, and `noise_asked` is asked for instead. Its range still holds a change that is all in one
/// element.
constexpr int noise_limit = 0;
constexpr int noise_asked = -3;

/// Number of blocks from which the magnitude of a fragment is estimated.
constexpr std::size_t magnitude_blocks = 64;

/// Rounding may make a norm that is computed twice differ by this factor.
constexpr double norm_tolerance = 1.001;

/// The side frame: exponents, padding to an even length, and checks unless the codec is f32.
struct Side {
  std::span<const std::int8_t> exponents;
  std::span<const std::uint16_t> checks;
};
std::size_t checks_offset(std::size_t blocks) {
  return (blocks + 1) / 2 * 2;
}

Side split_side(const ExchangeRequest& request) {
  const auto* bytes = request.side.data.data();
  const std::span exponents{reinterpret_cast<const std::int8_t*>(bytes), request.block_count};
  if (request.codec == Codec::f32) return {exponents, {}};
  return {exponents,
          {reinterpret_cast<const std::uint16_t*>(bytes + checks_offset(request.block_count)), request.block_count}};
}

std::size_t count_bits(std::span<const std::byte> bitmap) {
  std::size_t count = 0;
  for (const std::byte byte : bitmap)
    count += static_cast<std::size_t>(std::popcount(std::to_integer<unsigned>(byte)));
  return count;
}

bool bit(std::span<const std::byte> bitmap, std::size_t index) {
  return (std::to_integer<unsigned>(bitmap[index / 8]) >> (index % 8) & 1U) != 0;
}

/// Largest |y| of each listed block. It shows how coarse a step magnitudes alone need. Zeros if the device fails.
std::vector<float> largest_of(HeldFragment fragment, std::span<const std::uint32_t> blocks) {
  std::vector<float> largest(blocks.size());
  FrameBuffer values(blocks.size() * block_elements * sizeof(float));
  if (!fragment.device.read(fragment.buffers.y(), blocks, values.as<float>())) return largest;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const float value : values.as<float>().subspan(i * block_elements, block_elements))
      largest[i] = std::max(largest[i], std::fabs(value));
  }
  return largest;
}

/// The power of two of the block's root mean square.
int change_of(const BlockOutcome& outcome) {
  return std::ilogb(std::sqrt(outcome.mean_square));
}

/// True if a good part of what is pushed would be noise.
bool is_noise(const AnswerTask& task, int exponent, const BlockOutcome& outcome) {
  return task.request.pushes && outcome.mean_square > 0 && exponent > change_of(outcome) + noise_limit;
}

/// Findings for each block, in the order of the request's blocks.
struct CoarseSteps {
  std::vector<bool> coarse;   // such blocks say nothing about the disagreement
  std::vector<int> coarsest;  // the exponents that may be asked for at most
};

/// Marks as wide the blocks whose step gives a range beyond the responder's limits, or too much noise for a push. Their
/// D become zero.
CoarseSteps refuse_coarse_steps(const AnswerTask& task, HeldFragment fragment, std::span<const std::uint32_t> blocks,
                                std::span<const std::int8_t> exponents, std::span<std::byte> differences,
                                std::span<BlockOutcome> outcomes) {
  CoarseSteps found{.coarse = std::vector<bool>(blocks.size()), .coarsest = std::vector<int>(blocks.size())};
  const Codec codec = task.request.codec;
  std::vector<std::uint32_t> beyond;
  std::vector<std::size_t> place;  // the place of each in `blocks`
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const int limit = fragment.steps.limit_exponent(task.range, task.factor, blocks[i]) - (codec_bits(codec) - 1);
    const bool noise = is_noise(task, exponents[i], outcomes[i]);
    found.coarsest[i] = noise ? std::min(limit, change_of(outcomes[i]) + noise_asked) : limit;
    if (exponents[i] <= limit && !noise) continue;
    beyond.push_back(blocks[i]);
    place.push_back(i);
  }
  if (beyond.empty()) return found;
  const std::vector<float> largest = largest_of(fragment, beyond);
  for (std::size_t n = 0; n < beyond.size(); ++n) {
    const std::size_t i = place[n];
    if (exponents[i] <= smallest_exponent(largest[n]) + 1) continue;
    found.coarse[i] = true;
    outcomes[i] = {.mean_abs = 0, .mean_square = 0, .wide = true};
    const std::size_t size = codec_block_bytes(codec);
    std::memset(differences.data() + i * size, 0, size);
  }
  return found;
}

/// Largest |D| of one f32 block.
float largest_difference(std::span<const float> block) {
  float largest = 0;
  for (const float difference : block)
    largest = std::max(largest, std::fabs(difference));
  return largest;
}

/// True if the sum of magnitudes already shows that no element is beyond 2^limit. This saves a look at each element.
bool surely_within(const BlockOutcome& outcome, int limit) {
  return outcome.mean_abs * (2 * block_elements) < std::ldexp(1.0F, limit);
}

void scale(std::span<float> differences, int halvings) {
  const float weight = std::ldexp(1.0F, -halvings);
  for (float& difference : differences)
    difference *= weight;
}

/// Scales f32 blocks whose differences exceed either end's limit down by powers of two, and updates their outcomes.
/// Returns how many for each block; empty if there are no such blocks. The responder's limit is for a weight of one
/// half, and is larger if the initiator leaves it a smaller weight: a node that only follows may be far away after a
/// long time out of reach.
std::vector<std::uint8_t> limit_differences(const AnswerTask& task, HeldFragment fragment,
                                            std::span<const std::uint32_t> blocks, std::span<const std::int8_t> limits,
                                            std::span<float> differences, std::span<BlockOutcome> outcomes) {
  std::vector<std::uint8_t> halvings;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const int own = fragment.steps.limit_exponent(task.range, task.factor, blocks[i]);
    const int limit = std::min<int>(limits[i], own + task.request.min_shift - min_shift_bound);
    if (surely_within(outcomes[i], limit)) continue;
    const auto block = differences.subspan(i * block_elements, block_elements);
    const float largest = largest_difference(block);
    if (largest <= std::ldexp(1.0F, limit)) continue;
    int exponent = 0;
    (void)std::frexp(largest, &exponent);  // largest < 2^exponent
    scale(block, exponent - limit);
    (void)outcomes_of(Codec::f32, {}, std::as_bytes(block), {}, outcomes.subspan(i, 1));
    halvings.resize(blocks.size());
    halvings[i] = static_cast<std::uint8_t>(std::min<int>(exponent - limit, PushState::left_out));
  }
  return halvings;
}

/// False if the responder sent more than the request allowed: a block beyond its limit, or a norm beyond `clip`.
bool within_bounds(const ConcludeTask& task, std::span<const BlockOutcome> outcomes) {
  if (task.clip > 0 && std::ldexp(norm_of(outcomes), -task.reply.shift) > norm_tolerance * task.clip / 2) return false;
  if (task.reply.codec != Codec::f32) return true;  // a lattice block is bounded by its step
  const auto differences = task.reply.differences.as<float>();
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (surely_within(outcomes[i], task.exponents[i])) continue;
    const float largest = largest_difference(differences.subspan(i * block_elements, block_elements));
    if (largest > std::ldexp(1.0F, task.exponents[i])) return false;
  }
  return true;
}

/// Teaches the estimates all blocks except the coarse ones. Returns the ratio that BlockSteps::observe gives.
float observe(BlockSteps& steps, std::span<const std::uint32_t> blocks, std::span<const BlockOutcome> outcomes,
              const std::vector<bool>& coarse, float factor, const Witness& witness) {
  if (std::find(coarse.begin(), coarse.end(), true) == coarse.end()) {
    return steps.observe(blocks, outcomes, factor, witness);
  }
  std::vector<std::uint32_t> telling;
  std::vector<BlockOutcome> told;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (coarse[i]) continue;
    telling.push_back(blocks[i]);
    told.push_back(outcomes[i]);
  }
  return steps.observe(telling, told, factor, witness);
}

/// Sums over elements: `variance` is a bound s·|s·D| on what quantisation adds, and `square` is (s·D)², which includes
/// it.
struct Noise {
  double variance = 0;
  double square = 0;
};

Noise noise_of(std::span<const std::int8_t> exponents, std::span<const BlockOutcome> outcomes) {
  Noise noise;
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    noise.variance += std::ldexp(static_cast<double>(outcomes[i].mean_abs), exponents[i]);
    noise.square += outcomes[i].mean_square;
  }
  return noise;
}

ExchangeMeasure measure_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const BlockOutcome> outcomes,
                           const std::vector<bool>& coarse) {
  ExchangeMeasure measure;
  measure.blocks = static_cast<std::uint32_t>(outcomes.size());
  measure.coarse_blocks = static_cast<std::uint32_t>(std::count(coarse.begin(), coarse.end(), true));
  for (const BlockOutcome& outcome : outcomes) {
    if (outcome.wide) ++measure.wide_blocks;
    measure.mean_abs += outcome.mean_abs;  // 0 for a wide block
  }
  const auto in_range = measure.blocks - measure.wide_blocks;
  if (in_range > 0) {
    measure.mean_abs /= in_range;
    measure.distance = norm_of(outcomes) * std::sqrt(static_cast<double>(measure.blocks) / in_range);
    measure.telling = 2 * in_range >= measure.blocks;
  }
  if (codec != Codec::f32) {  // the exponents of f32 are limits, not steps
    const Noise noise = noise_of(exponents, outcomes);
    int coarsest = min_step_exponent;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (!outcomes[i].wide) coarsest = std::max<int>(coarsest, exponents[i]);
    }
    measure.coarsest_step = std::ldexp(1.0, coarsest);
    if (noise.square > 0) measure.codec_error = std::min(1.0, std::sqrt(noise.variance / noise.square));
  }
  return measure;
}

/// Root mean square of y over at most `magnitude_blocks` blocks, spread evenly over the fragment. It is cheap next to
/// the exchange, and precise enough for a ratio. 0 if one of the blocks cannot be read.
double magnitude_of(HeldFragment fragment) {
  const std::size_t block_count = fragment.buffers.block_count();
  const std::size_t stride = (block_count + magnitude_blocks - 1) / magnitude_blocks;
  std::vector<std::uint32_t> blocks;
  for (std::size_t block = 0; block < block_count; block += stride)
    blocks.push_back(static_cast<std::uint32_t>(block));
  FrameBuffer values(blocks.size() * block_elements * sizeof(float));
  if (blocks.empty() || !fragment.device.read(fragment.buffers.y(), blocks, values.as<float>())) return 0;
  double square = 0;
  for (const double value : values.as<float>())
    square += value * value;
  return std::sqrt(square / static_cast<double>(blocks.size() * block_elements));
}

/// False if every D is zero: the replicas agree in these blocks.
bool differs(std::span<const BlockOutcome> outcomes) {
  return std::any_of(outcomes.begin(), outcomes.end(), [](const BlockOutcome& o) { return o.mean_abs > 0; });
}

/// The threshold τ of one end, for these blocks.
float threshold_of(const Clip& clip, const BlockSteps& steps, float factor, std::span<const std::uint32_t> blocks) {
  if (clip.threshold > 0 || !(clip.multiple > 0)) return clip.threshold;
  const double expected = std::max<double>(clip.multiple * steps.expected_norm(factor, blocks), clip.least);
  return static_cast<float>(std::min<double>(expected, std::numeric_limits<float>::max()));
}

/// The shift that clipping asks for. If no allowed shift is enough, f32 differences are scaled down, and lattice blocks
/// are all marked wide, so that nothing moves.
int clip_shift_of(const AnswerTask& task, float threshold, std::span<std::byte> differences,
                  std::span<BlockOutcome> outcomes, std::vector<bool>& coarse, bool& limited) {
  const int shift = clip_shift(norm_of(outcomes), lower_threshold(threshold, task.request.clip));
  if (shift <= max_shift_bound) return shift;
  if (task.request.codec == Codec::f32) {
    scale({reinterpret_cast<float*>(differences.data()), differences.size() / sizeof(float)}, shift - max_shift_bound);
    limited = true;
    return max_shift_bound;
  }
  std::fill(differences.begin(), differences.end(), std::byte{0});
  std::fill(outcomes.begin(), outcomes.end(), BlockOutcome{.wide = true});
  coarse.assign(outcomes.size(), true);
  return max_shift_bound;
}

/// The shift for the quantisation noise of these blocks. f32 has none.
int noise_shift_of(std::span<const std::int8_t> exponents, std::span<const BlockOutcome> outcomes) {
  constexpr double half_pi = 1.5707963267948966;
  double normal = 0;
  for (const BlockOutcome& outcome : outcomes)
    normal += half_pi * static_cast<double>(outcome.mean_abs) * outcome.mean_abs;
  const Noise noise = noise_of(exponents, outcomes);
  return noise_shift(noise.variance, noise.square, normal);
}

/// Writes the wide bitmap and the wanted steps into the reply. Writes nothing if no block is wide.
void describe_wide(const AnswerTask& task, HeldFragment fragment, std::span<const std::uint32_t> blocks,
                   std::span<const std::int8_t> exponents, std::span<const BlockOutcome> outcomes,
                   const std::vector<bool>& coarse, std::span<const int> coarsest, ExchangeReply& reply) {
  std::vector<std::byte> wide(bitmap_bytes(blocks.size()));
  std::vector<std::int8_t> asked(exponents.begin(), exponents.end());
  bool any = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!outcomes[i].wide) continue;
    any = true;
    wide[i / 8] |= std::byte{1} << (i % 8);
    const Codec codec = task.request.codec;
    const int own = fragment.steps.exponent(codec, task.range, task.factor, blocks[i]);
    // With a large link factor, the responder's own step is coarser than the steps that it accepts from others.
    const int wanted = coarse[i] ? std::min(own + widen_least, coarsest[i])
                                 : std::clamp(own, exponents[i] + widen_least, exponents[i] + widen_most);
    asked[i] = static_cast<std::int8_t>(std::clamp(wanted, min_step_exponent, max_step_exponent));
  }
  if (!any) return;
  reply.wide = Bytes::adopt(std::move(wide));
  reply.asked = Bytes::adopt(std::move(asked));
}

/// False if a number is larger than any step allows: it is treated like an infinite one.
bool can_be_averaged(float value) {
  return std::fabs(value) < largest_averaged;
}

/// False if one of the blocks has a number that cannot be averaged. `values`: the encoded values of f32. Lattice blocks
/// are read only if they have the coarsest step, since such a number needs it.
bool within_reach(HeldFragment fragment, Codec codec, std::span<const std::uint32_t> blocks,
                  std::span<const std::int8_t> exponents, FrameBuffer& values) {
  if (codec == Codec::f32) return std::ranges::all_of(values.as<float>(), can_be_averaged);
  std::vector<std::uint32_t> coarsest;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (exponents[i] == max_step_exponent) coarsest.push_back(blocks[i]);
  }
  return coarsest.empty() || std::ranges::all_of(largest_of(fragment, coarsest), can_be_averaged);
}

/// Writes one half of an exchange beside the present correction. False: the device failed or has no room, and nothing
/// counts.
bool commit(HeldFragment fragment, Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
            std::span<const std::int8_t> exponents, std::span<const std::byte> differences) {
  const auto target = fragment.buffers.begin_commit();
  if (target.out == nullptr) return false;
  return fragment.device.apply(codec, shift, sign, blocks, exponents, differences, fragment.buffers.block_count(),
                               target.in, target.out) &&
         fragment.buffers.write_back();
}

/// The shift with which this end allows for the noise in the differences.
int own_noise_shift_of(const ConcludeTask& task, std::span<const BlockOutcome> outcomes) {
  return task.reply.codec == Codec::f32 ? 0 : noise_shift_of(task.exponents, outcomes);
}

/// True if the responder moved as far as it was asked in all blocks within range. A shift for noise counts only where
/// there is progress.
bool took_all(const ConcludeTask& task, bool has_progress, std::span<const BlockOutcome> outcomes) {
  if (task.push->alone && !has_progress) return false;
  const int allowed = has_progress ? 0 : own_noise_shift_of(task, outcomes);
  return !task.reply.limited && task.reply.shift - task.push->shift <= allowed;
}

/// Writes the present correction again.
bool keep_correction(HeldFragment fragment, const FragmentBuffers::Target& target) {
  const std::size_t elements = fragment.buffers.block_count() * block_elements;
  return target.in == nullptr ? fragment.device.clear(target.out, elements)
                              : fragment.device.copy(target.out, target.in, elements);
}

/// Takes the owner's value over in all blocks within range, and keeps what was trained since the push.
bool commit_push(HeldFragment fragment, const ConcludeTask& task, std::span<const BlockOutcome> outcomes) {
  PushState& state = *fragment.push;
  const auto told = task.reply.halvings.as<std::uint8_t>();
  std::vector<std::uint8_t> halvings(fragment.buffers.block_count(), PushState::left_out);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].wide) halvings[task.blocks[i]] = told.empty() ? 0 : told[i];
  }
  const auto target = fragment.buffers.begin_commit();
  if (target.out == nullptr || !state.keep_parts(fragment.device, halvings)) return false;
  const auto apply = [&](int shift, int sign, const float* in, float* out) {
    return fragment.device.apply(task.reply.codec, shift, sign, task.blocks, task.exponents,
                                 task.reply.differences.data, fragment.buffers.block_count(), in, out);
  };
  // If the responder moves less than was asked, because of the noise in the differences, this end does the same. A node
  // that only follows lets the responder use the least weight only. Then the reply does not show the shift for noise,
  // and this end computes it itself.
  const int noise = own_noise_shift_of(task, outcomes);
  const int less = std::max({task.reply.shift - task.push->shift, noise, 0});
  if (noise > 0 && less == noise && state.has_progress()) {
    return state.count_part(fragment.device, fragment.buffers.block_count(), task.push->ahead,
                            std::ldexp(1.0F, -less)) &&
           keep_correction(fragment, target) && fragment.buffers.write_back();
  }
  const int of_responder = std::min<int>(less + task.reply.shift, max_shift_bound);
  const auto move = [&](const float* in, float* out) {
    return apply(less, +1, in, out) && apply(of_responder, -1, out, out);
  };
  if (task.push->alone && !state.has_progress()) {
    return state.learn(less == 0 && !task.reply.limited, move) && keep_correction(fragment, target) &&
           fragment.buffers.write_back();
  }
  return state.take(fragment.device, fragment.buffers, target, move) && fragment.buffers.write_back();
}

}  // namespace

namespace {

double root_of_elements(const ExchangeMeasure& measure) {
  return std::sqrt(static_cast<double>(measure.blocks * block_elements));
}

}  // namespace

double values_norm(const ExchangeMeasure& measure) {
  return root_of_elements(measure) * measure.magnitude;
}

double relative_distance(const ExchangeMeasure& measure) {
  if (!(measure.distance > root_of_elements(measure) * finest_step)) return 0;
  return measure.distance / values_norm(measure);
}

std::vector<std::uint32_t> blocks_of(std::span<const std::byte> bitmap, std::size_t fragment_blocks) {
  std::vector<std::uint32_t> blocks;
  if (bitmap.empty()) {
    blocks.resize(fragment_blocks);
    std::iota(blocks.begin(), blocks.end(), 0U);
    return blocks;
  }
  for (std::size_t i = 0; i < fragment_blocks; ++i) {
    if (bit(bitmap, i)) blocks.push_back(static_cast<std::uint32_t>(i));
  }
  return blocks;
}

Bytes bitmap_of(std::span<const std::uint32_t> blocks, std::size_t fragment_blocks) {
  if (blocks.size() == fragment_blocks) return {};
  std::vector<std::byte> bitmap(bitmap_bytes(fragment_blocks));
  for (const std::uint32_t block : blocks)
    bitmap[block / 8] |= std::byte{1} << (block % 8);
  return Bytes::adopt(std::move(bitmap));
}

bool fits(const ExchangeRequest& request, std::size_t fragment_blocks) {
  if (request.blocks.empty()) {
    if (request.block_count != fragment_blocks) return false;
  } else {
    if (request.blocks.size() != bitmap_bytes(fragment_blocks)) return false;
    for (std::size_t i = fragment_blocks; i < request.blocks.size() * 8; ++i) {
      if (bit(request.blocks.data, i)) return false;
    }
    if (count_bits(request.blocks.data) != request.block_count) return false;
  }
  if (request.block_count == 0) return false;
  if (request.side.size() != side_bytes(request.codec, request.block_count)) return false;
  if (request.values.size() != request.block_count * codec_block_bytes(request.codec)) return false;
  const auto exponents = split_side(request).exponents;
  return std::all_of(exponents.begin(), exponents.end(),
                     [](std::int8_t e) { return e >= min_step_exponent && e <= max_step_exponent; });
}

bool fits(const ExchangeReply& reply, const ExchangeRequest& request) {
  if (reply.fragment != request.fragment || reply.job != request.job) return false;
  if (reply.status != ReplyStatus::done) return true;
  if (reply.codec != request.codec || reply.block_count != request.block_count) return false;
  if (reply.shift < request.min_shift || reply.shift > max_shift_bound) return false;
  if (reply.differences.size() != request.block_count * codec_block_bytes(request.codec)) return false;
  if (!reply.halvings.empty() && reply.halvings.size() != request.block_count) return false;
  if (reply.wide.empty()) return reply.asked.empty() && !(reply.limited && request.codec != Codec::f32);
  if (request.codec == Codec::f32 || reply.limited) return false;
  if (reply.wide.size() != bitmap_bytes(request.block_count) || reply.asked.size() != request.block_count) return false;
  const auto asked = reply.asked.as<std::int8_t>();
  return std::all_of(asked.begin(), asked.end(),
                     [](std::int8_t e) { return e >= min_step_exponent && e <= max_step_exponent; });
}

EncodeTask::Result EncodeTask::run(HeldFragment fragment) && {
  FragmentView y = fragment.buffers.y();
  const float* const pushed = push ? fragment.push->begin(fragment.device, fragment.buffers, push->ahead) : nullptr;
  if (pushed != nullptr) y = {.publication = pushed};
  if (!fragment.steps.primed()) fragment.steps.prime(y, fragment.device);
  const std::size_t fragment_blocks = fragment.buffers.block_count();
  if (blocks.empty()) blocks = blocks_of({}, fragment_blocks);

  Result result;
  result.pushed = pushed != nullptr;
  const std::size_t count = blocks.size();
  std::vector<std::byte> side(side_bytes(request.codec, count));
  FrameBuffer values(count * codec_block_bytes(request.codec));
  const std::span<std::int8_t> used{reinterpret_cast<std::int8_t*>(side.data()), count};
  std::span<std::uint16_t> checks;
  for (std::size_t i = 0; request.codec == Codec::f32 && i < count; ++i)
    used[i] = static_cast<std::int8_t>(fragment.steps.limit_exponent(range, factor, blocks[i]));
  if (request.codec != Codec::f32) {
    checks = {reinterpret_cast<std::uint16_t*>(side.data() + checks_offset(count)), count};
    fragment.steps.exponents(request.codec, range, factor, blocks, used);
    for (std::size_t i = 0; exponents.size() == count && i < count; ++i) {
      // A step that a responder asked for is used only up to the limit for a responder's own steps.
      const int most = fragment.steps.limit_exponent(range, factor, blocks[i]) - (codec_bits(request.codec) - 1);
      used[i] = static_cast<std::int8_t>(std::clamp<int>(most, min_step_exponent, exponents[i]));
    }
  }
  result.finite = fragment.device.encode(request.codec, y, blocks, request.seed, used, checks, values.bytes()) &&
                  within_reach(fragment, request.codec, blocks, used, values);
  result.exponents.assign(used.begin(), used.end());
  result.factor = factor;
  result.request = std::move(request);
  result.request.pushes = pushed != nullptr && push->ahead > 0;
  result.request.clip = threshold_of(clip, fragment.steps, factor, blocks);
  result.request.block_count = static_cast<std::uint32_t>(count);
  result.request.blocks = bitmap_of(blocks, fragment_blocks);
  result.request.side = Bytes::adopt(std::move(side));
  result.request.values = std::move(values).share();
  result.blocks = std::move(blocks);
  return result;
}

AnswerTask::Result AnswerTask::run(HeldFragment fragment) && {
  Result result;
  ExchangeReply& reply = result.reply;
  reply.counter = request.counter;
  reply.job = request.job;
  reply.fragment = request.fragment;
  reply.codec = request.codec;
  reply.block_count = request.block_count;

  const FragmentView y = fragment.buffers.y();
  if (!fragment.steps.primed()) fragment.steps.prime(y, fragment.device);
  const auto blocks = blocks_of(request.blocks.data, fragment.buffers.block_count());
  const Side side = split_side(request);
  FrameBuffer differences(request.values.size());
  std::vector<BlockOutcome> outcomes(blocks.size());
  if (!fragment.device.difference(request.codec, y, blocks, request.seed, side.exponents, side.checks,
                                  request.values.data, differences.bytes(), outcomes)) {
    FrameBuffer own(fragment.buffers.block_count() * block_elements * sizeof(float));
    result.own_not_finite = !fragment.device.read(y, fragment.buffers.block_count(), own.as<float>());
    reply.status = ReplyStatus::refused;
    reply.reason = result.own_not_finite ? RefuseReason::quarantined : RefuseReason::not_finite;
    return result;
  }
  std::vector<bool> coarse;
  std::vector<BlockOutcome> moved;
  const float threshold = threshold_of(clip, fragment.steps, factor, blocks);
  if (request.codec == Codec::f32) {
    moved = outcomes;
    reply.halvings =
        Bytes::adopt(limit_differences(*this, fragment, blocks, side.exponents, differences.as<float>(), moved));
    reply.limited = !reply.halvings.empty();
    shift = std::max(shift, clip_shift_of(*this, threshold, differences.bytes(), moved, coarse, reply.limited));
  } else {
    auto [refused, coarsest] =
        refuse_coarse_steps(*this, fragment, blocks, side.exponents, differences.bytes(), outcomes);
    coarse = std::move(refused);
    shift = std::max(shift + noise_shift_of(side.exponents, outcomes),
                     clip_shift_of(*this, threshold, differences.bytes(), outcomes, coarse, reply.limited));
    describe_wide(*this, fragment, blocks, side.exponents, outcomes, coarse, coarsest, reply);
  }
  reply.status = ReplyStatus::done;
  const auto weighted = [&](int more) { return std::clamp<int>(shift + more, request.min_shift, max_shift_bound); };
  reply.shift = static_cast<std::uint8_t>(weighted(weights.initiator));
  result.half.shift = weighted(weights.responder);
  const double magnitude = magnitude_of(fragment);
  result.commit = !only_gives && differs(outcomes);
  if (result.commit &&
      !commit(fragment, request.codec, result.half.shift, -1, blocks, side.exponents, differences.bytes())) {
    result.commit = false;
    result.own_not_finite = true;
    reply.status = ReplyStatus::refused;
    reply.reason = RefuseReason::quarantined;
    reply.wide = reply.asked = reply.halvings = {};
    reply.limited = false;
    return result;
  }
  result.measure = measure_of(request.codec, side.exponents, outcomes, coarse);
  result.measure.magnitude = magnitude;
  result.measure.ratio = observe(fragment.steps, blocks, outcomes, coarse, factor, witness);
  reply.differences = std::move(differences).share();
  if (result.commit) {
    result.half.blocks = std::move(request.blocks);
    result.half.exponents.assign(side.exponents.begin(), side.exponents.end());
  }
  return result;
}

UndoTask::Result UndoTask::run(HeldFragment fragment) const {
  const auto blocks = blocks_of(half.blocks.data, fragment.buffers.block_count());
  return {.commit = commit(fragment, reply.codec, half.shift, +1, blocks, half.exponents, reply.differences.data)};
}

LookTask::Result LookTask::run(HeldFragment fragment) const {
  std::vector<float> values(fragment.buffers.block_count() * block_elements);
  return {.finite = fragment.device.read(fragment.buffers.y(), fragment.buffers.block_count(), values) &&
                    std::ranges::all_of(values, can_be_averaged)};
}

ConcludeTask::Result ConcludeTask::run(HeldFragment fragment) && {
  Result result;
  result.shift = reply.shift;
  std::vector<BlockOutcome> outcomes(blocks.size());
  if (!fragment.device.outcomes_of(reply.codec, exponents, reply.differences.data, reply.wide.data, outcomes))
    return result;
  if (!within_bounds(*this, outcomes)) return result;
  result.accepted = true;
  const double magnitude = magnitude_of(fragment);
  const auto asked = reply.asked.as<std::int8_t>();
  std::vector<bool> coarse(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!outcomes[i].wide) continue;
    coarse[i] = asked[i] < exponents[i];
    if (coarse[i]) fragment.steps.refine(blocks[i], exponents[i] - asked[i]);
    result.wide.push_back(blocks[i]);
    result.wide_exponents.push_back(asked[i]);
  }
  if (push) {
    const std::uint32_t commits = fragment.buffers.parts().commits;
    const bool undisturbed = fragment.push->is_undisturbed(commits);
    result.commit = commit_push(fragment, *this, outcomes);
    if (!result.commit) return {};
    result.took_all = took_all(*this, fragment.push->has_progress(), outcomes);
    fragment.push->finish(undisturbed, push->keeps, (commits + 1) % commits_modulus);
  } else {
    result.commit = differs(outcomes);
    if (result.commit && !commit(fragment, reply.codec, reply.shift, +1, blocks, exponents, reply.differences.data))
      return {};
  }
  result.measure = measure_of(reply.codec, exponents, outcomes, coarse);
  result.measure.limited = reply.limited;
  result.measure.telling = result.measure.telling && !reply.limited;
  result.measure.magnitude = magnitude;
  result.measure.ratio = observe(fragment.steps, blocks, outcomes, coarse, factor, witness);
  return result;
}

}  // namespace gossamer::gossip
