#include "gossip/exchange.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gossip/check.hpp"
#include "gossip/mixing.hpp"

namespace gossamer::gossip {

namespace {

/// A responder takes no step this many powers of two above its own estimate: bounds what a poisoned peer can move.
constexpr int step_tolerance = 8;
/// What a responder asks for on a wide block: at least this much wider, at most that much. For one refused for its
/// coarse step, `widen_least` above its own estimate.
constexpr int widen_least = 2;
constexpr int widen_most = 6;

/// The side frame: exponents, padding to even, checks.
struct Side {
  std::span<const std::int8_t> exponents;
  std::span<const std::uint16_t> checks;
};
std::size_t checks_offset(std::size_t blocks) {
  return (blocks + 1) / 2 * 2;
}

Side split_side(const ExchangeRequest& request) {
  if (request.codec == Codec::f32) return {};
  const auto* bytes = request.side.data.data();
  return {{reinterpret_cast<const std::int8_t*>(bytes), request.block_count},
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

/// Largest |y| of one block: how coarse a step the magnitudes alone may need.
float largest_of(const FragmentView& y, std::uint32_t block) {
  float largest = 0;
  for (std::size_t i = block * block_elements; i < (block + 1) * block_elements; ++i) {
    largest = std::max(largest, std::fabs(y.at(i)));
  }
  return largest;
}

/// Marks wide the blocks whose step is far above the responder's own estimate: their D become zero. Returns them, in
/// the order of `blocks`: refused for their step, they say nothing of the disagreement.
std::vector<bool> refuse_coarse_steps(const AnswerTask& task, HeldFragment fragment,
                                      std::span<const std::uint32_t> blocks, std::span<const std::int8_t> exponents,
                                      std::span<std::byte> differences, std::span<BlockOutcome> outcomes) {
  std::vector<bool> coarse(blocks.size());
  const Codec codec = task.request.codec;
  const FragmentView y = fragment.buffers.y();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const int own = fragment.steps.exponent(codec, task.range, task.factor, blocks[i]);
    if (exponents[i] <= own + step_tolerance) continue;
    if (exponents[i] <= smallest_exponent(largest_of(y, blocks[i])) + 1) continue;
    coarse[i] = true;
    outcomes[i] = {.mean_abs = 0, .mean_square = 0, .wide = true};
    const std::size_t size = codec_block_bytes(codec);
    std::memset(differences.data() + i * size, 0, size);
  }
  return coarse;
}

/// Teaches the estimates all blocks but the coarse ones; returns the ratio that BlockSteps::observe gives.
float observe(BlockSteps& steps, std::span<const std::uint32_t> blocks, std::span<const BlockOutcome> outcomes,
              const std::vector<bool>& coarse, float factor) {
  if (std::find(coarse.begin(), coarse.end(), true) == coarse.end()) return steps.observe(blocks, outcomes, factor);
  std::vector<std::uint32_t> telling;
  std::vector<BlockOutcome> told;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (coarse[i]) continue;
    telling.push_back(blocks[i]);
    told.push_back(outcomes[i]);
  }
  return steps.observe(telling, told, factor);
}

ExchangeMeasure measure_of(std::span<const BlockOutcome> outcomes, const std::vector<bool>& coarse) {
  ExchangeMeasure measure;
  measure.blocks = static_cast<std::uint32_t>(outcomes.size());
  measure.coarse_blocks = static_cast<std::uint32_t>(std::count(coarse.begin(), coarse.end(), true));
  for (const BlockOutcome& outcome : outcomes) {
    if (outcome.wide) ++measure.wide_blocks;
    measure.mean_abs += outcome.mean_abs;  // 0 where wide
  }
  const auto in_range = measure.blocks - measure.wide_blocks;
  if (in_range > 0) measure.mean_abs /= in_range;
  return measure;
}

/// False if every D is zero: the replicas agree here.
bool differs(std::span<const BlockOutcome> outcomes) {
  return std::any_of(outcomes.begin(), outcomes.end(), [](const BlockOutcome& o) { return o.mean_abs > 0; });
}

/// Shift for the quantisation noise of these blocks (0 for f32, which has none).
int noise_shift_of(std::span<const std::int8_t> exponents, std::span<const BlockOutcome> outcomes) {
  constexpr double half_pi = 1.5707963267948966;
  double noise = 0;
  double normal = 0;
  double square = 0;
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    const double mean_abs = outcomes[i].mean_abs;
    noise += std::ldexp(mean_abs, exponents[i]);
    normal += half_pi * mean_abs * mean_abs;
    square += outcomes[i].mean_square;
  }
  return noise_shift(noise, square, normal);
}

/// The wide bitmap and the steps asked for, into the reply. Nothing if no block is wide.
void describe_wide(const AnswerTask& task, HeldFragment fragment, std::span<const std::uint32_t> blocks,
                   std::span<const std::int8_t> exponents, std::span<const BlockOutcome> outcomes,
                   const std::vector<bool>& coarse, ExchangeReply& reply) {
  std::vector<std::byte> wide(bitmap_bytes(blocks.size()));
  std::vector<std::int8_t> asked(exponents.begin(), exponents.end());
  bool any = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!outcomes[i].wide) continue;
    any = true;
    wide[i / 8] |= std::byte{1} << (i % 8);
    const int own = fragment.steps.exponent(task.request.codec, task.range, task.factor, blocks[i]);
    const int wanted =
        coarse[i] ? own + widen_least : std::clamp(own, exponents[i] + widen_least, exponents[i] + widen_most);
    asked[i] = static_cast<std::int8_t>(std::min(wanted, max_step_exponent));
  }
  if (!any) return;
  reply.wide = Bytes::adopt(std::move(wide));
  reply.asked = Bytes::adopt(std::move(asked));
}

}  // namespace

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
  if (reply.wide.empty()) return reply.asked.empty();
  if (request.codec == Codec::f32) return false;
  if (reply.wide.size() != bitmap_bytes(request.block_count) || reply.asked.size() != request.block_count) return false;
  const auto asked = reply.asked.as<std::int8_t>();
  return std::all_of(asked.begin(), asked.end(),
                     [](std::int8_t e) { return e >= min_step_exponent && e <= max_step_exponent; });
}

EncodeTask::Result EncodeTask::run(HeldFragment fragment) && {
  const FragmentView y = fragment.buffers.y();
  if (!fragment.steps.primed()) fragment.steps.prime(y);
  const std::size_t fragment_blocks = fragment.buffers.block_count();
  if (blocks.empty()) blocks = blocks_of({}, fragment_blocks);

  Result result;
  const std::size_t count = blocks.size();
  std::vector<std::byte> side(side_bytes(request.codec, count));
  std::vector<std::byte> values(count * codec_block_bytes(request.codec));
  std::span<std::int8_t> used;
  std::span<std::uint16_t> checks;
  if (request.codec != Codec::f32) {
    used = {reinterpret_cast<std::int8_t*>(side.data()), count};
    checks = {reinterpret_cast<std::uint16_t*>(side.data() + checks_offset(count)), count};
    if (exponents.size() == count) {
      std::copy(exponents.begin(), exponents.end(), used.begin());
    } else {
      fragment.steps.exponents(request.codec, range, factor, blocks, used);
    }
  }
  result.finite = encode(request.codec, y, blocks, request.seed, used, checks, values);
  result.exponents.assign(used.begin(), used.end());
  result.factor = factor;
  result.request = std::move(request);
  result.request.block_count = static_cast<std::uint32_t>(count);
  result.request.blocks = bitmap_of(blocks, fragment_blocks);
  result.request.side = Bytes::adopt(std::move(side));
  result.request.values = Bytes::adopt(std::move(values));
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
  if (!fragment.steps.primed()) fragment.steps.prime(y);
  const auto blocks = blocks_of(request.blocks.data, fragment.buffers.block_count());
  const Side side = split_side(request);
  std::vector<std::byte> differences(request.values.size());
  std::vector<BlockOutcome> outcomes(blocks.size());
  if (!difference(request.codec, y, blocks, request.seed, side.exponents, side.checks, request.values.data, differences,
                  outcomes)) {
    std::vector<float> own(fragment.buffers.block_count() * block_elements);
    result.own_not_finite = !sum(y, fragment.buffers.block_count(), own.data());
    reply.status = ReplyStatus::refused;
    reply.reason = result.own_not_finite ? RefuseReason::quarantined : RefuseReason::not_finite;
    return result;
  }
  std::vector<bool> coarse;
  if (request.codec != Codec::f32) {
    coarse = refuse_coarse_steps(*this, fragment, blocks, side.exponents, differences, outcomes);
    shift += noise_shift_of(side.exponents, outcomes);
    describe_wide(*this, fragment, blocks, side.exponents, outcomes, coarse, reply);
  }
  reply.status = ReplyStatus::done;
  reply.shift = static_cast<std::uint8_t>(std::clamp<int>(shift, request.min_shift, max_shift_bound));
  result.commit = differs(outcomes);
  if (result.commit) {
    const auto target = fragment.buffers.begin_commit();
    apply(request.codec, reply.shift, -1, blocks, side.exponents, differences, fragment.buffers.block_count(),
          target.in, target.out);
  }
  result.measure = measure_of(outcomes, coarse);
  result.measure.ratio = observe(fragment.steps, blocks, outcomes, coarse, factor);
  reply.differences = Bytes::adopt(std::move(differences));
  return result;
}

ConcludeTask::Result ConcludeTask::run(HeldFragment fragment) && {
  Result result;
  result.shift = reply.shift;
  std::vector<BlockOutcome> outcomes(blocks.size());
  if (!outcomes_of(reply.codec, exponents, reply.differences.data, reply.wide.data, outcomes)) return result;
  result.accepted = true;
  result.commit = differs(outcomes);
  if (result.commit) {
    const auto target = fragment.buffers.begin_commit();
    apply(reply.codec, reply.shift, +1, blocks, exponents, reply.differences.data, fragment.buffers.block_count(),
          target.in, target.out);
  }
  const auto asked = reply.asked.as<std::int8_t>();
  std::vector<bool> coarse(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!outcomes[i].wide) continue;
    coarse[i] = asked[i] < exponents[i];
    if (coarse[i]) fragment.steps.refine(blocks[i], exponents[i] - asked[i]);
    result.wide.push_back(blocks[i]);
    result.wide_exponents.push_back(asked[i]);
  }
  result.measure = measure_of(outcomes, coarse);
  result.measure.ratio = observe(fragment.steps, blocks, outcomes, coarse, factor);
  return result;
}

}  // namespace gossamer::gossip
