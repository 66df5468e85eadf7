// The numbers that other nodes send: requests are answered and replies concluded on a small fragment, as a job does
// with what the wire codec has accepted. The kernels must agree with their definition, and other nodes must accept each
// answer.

#include <cmath>

#include "gossip/codec/eight_bits.hpp"
#include "gossip/exchange/exchange.hpp"
#include "gossip/random.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace gossamer::fuzz {
namespace {

using namespace gossamer::gossip;

constexpr std::size_t most_blocks = 16;

/// A fragment as the daemon holds it.
struct Fragment {
  std::array<std::vector<float>, 3> memory;
  FragmentBuffers buffers;
  BlockSteps steps;

  explicit Fragment(std::size_t blocks)
      : memory{random_values(blocks), std::vector<float>(blocks * block_elements),
               std::vector<float>(blocks * block_elements)},
        buffers({memory[0].data(), memory[1].data(), memory[2].data()}, blocks, {.generation = 1}),
        steps(blocks) {}
  static std::vector<float> random_values(std::size_t blocks) {
    Random random(blocks);
    std::vector<float> values(blocks * block_elements);
    for (float& value : values)
      value = static_cast<float>(random.uniform() - 0.5);
    return values;
  }
  HeldFragment held() { return {.buffers = buffers, .steps = steps}; }
  void finish(bool commit) {
    if (commit) buffers.finish_commit();
    std::vector<float> values(buffers.block_count() * block_elements);
    GOSSAMER_CHECK(buffers.device().read(buffers.y(), buffers.block_count(), values));
    GOSSAMER_CHECK(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
  }
};

bool equal(const BlockOutcome& a, const BlockOutcome& b) {
  return a.wide == b.wide && (a.wide || (a.mean_abs == b.mean_abs && a.mean_square == b.mean_square));
}

/// All kernels find the same differences.
void compare_kernels(const ExchangeRequest& request, const FragmentView& y, std::size_t fragment_blocks) {
  const auto blocks = blocks_of(request.blocks.data, fragment_blocks);
  const auto exponents = request.side.as<std::int8_t>().first(blocks.size());
  const auto checks = request.codec == Codec::f32 ? std::span<const std::uint16_t>()
                                                  : request.side.as<std::uint16_t>().last(blocks.size());
  std::vector<std::byte> differences(request.values.size());
  std::vector<std::byte> defined(request.values.size());
  std::vector<BlockOutcome> outcomes(blocks.size());
  std::vector<BlockOutcome> defined_outcomes(blocks.size());
  const bool finite =
      difference(request.codec, y, blocks, request.seed, exponents, checks, request.values.data, differences, outcomes);
  GOSSAMER_CHECK(finite == scalar::difference(request.codec, y, blocks, request.seed, exponents, checks,
                                              request.values.data, defined, defined_outcomes));
  GOSSAMER_CHECK(!finite || (differences == defined && std::ranges::equal(outcomes, defined_outcomes, equal)));
}

void receive(const ExchangeRequest& request) {
  const std::size_t blocks = request.blocks.empty() ? request.block_count : request.blocks.size() * 8;
  if (blocks > most_blocks || !fits(request, blocks)) return;
  Fragment fragment(blocks);
  compare_kernels(request, fragment.buffers.y(), blocks);
  auto result = AnswerTask{.request = request, .clip = {.multiple = 8}, .witness = {.partner = 1}}.run(fragment.held());
  GOSSAMER_CHECK(!result.own_not_finite && fits(result.reply, request));
  (void)peer::encode(Message(result.reply));
  fragment.finish(result.commit);
}

/// Concludes `reply` as the answer to a request for all of its blocks.
void receive(const ExchangeReply& reply) {
  if (reply.status != ReplyStatus::done || reply.block_count > most_blocks) return;
  Fragment fragment(reply.block_count);
  ExchangeRequest request{.job = reply.job, .fragment = reply.fragment, .codec = reply.codec};
  auto asked = EncodeTask{.request = std::move(request)}.run(fragment.held());
  GOSSAMER_CHECK(asked.finite);
  (void)peer::encode(Message(asked.request));
  if (!fits(reply, asked.request)) return;
  const auto result =
      ConcludeTask{.reply = reply, .blocks = asked.blocks, .exponents = asked.exponents, .clip = asked.request.clip}
          .run(fragment.held());
  GOSSAMER_CHECK(result.accepted || !result.commit);
  fragment.finish(result.commit);
}

/// Rounding any bytes must work. A value that has been rounded once does not change when it is rounded again.
void receive(const AverageValues& message) {
  const std::size_t size = message.values.size();
  const std::size_t count = size - (size + eight_bits_block) / (eight_bits_block + 1);
  if (eight_bits_bytes(count) != size) return;
  std::vector<float> values(count);
  std::vector<float> carried(count);
  std::vector<float> again(count);
  std::vector<std::byte> bytes(size);
  from_eight_bits(message.values.data, values);
  add_eight_bits(message.values.data, again);
  to_eight_bits(values, carried, bytes);
  from_eight_bits(bytes, values);
  std::ranges::fill(carried, 0.0F);
  to_eight_bits(values, carried, bytes);
  from_eight_bits(bytes, again);
  GOSSAMER_CHECK(std::ranges::equal(values, again, [](float a, float b) { return a == b || (a != a && b != b); }));
}

void receive(const auto&) {}

}  // namespace
}  // namespace gossamer::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (gossamer::fuzz::Messages messages(data, size); !messages.ended();) {
    const auto packet = gossamer::peer::decode(messages.next());
    if (!packet || !std::holds_alternative<gossamer::Message>(*packet)) continue;
    std::visit([](const auto& message) { gossamer::fuzz::receive(message); }, std::get<gossamer::Message>(*packet));
  }
  return 0;
}
