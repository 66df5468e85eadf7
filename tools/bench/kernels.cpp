#include "tools/bench/kernels.hpp"

#include <stdexcept>
#include <vector>

#include "gossip/exchange/exchange.hpp"
#include "tools/bench/measure.hpp"
#include "tools/bench/thread_time.hpp"

namespace gossamer::bench {
namespace {

constexpr std::size_t fragments = 8;
constexpr std::size_t rounds = 4;  // the first round only touches the memory
constexpr std::size_t fragment_blocks = default_fragment_elements / block_elements;

/// One replica, with three buffers for each fragment, as in a client's shared memory.
struct BenchReplica {
  explicit BenchReplica(float offset) : memory(3 * fragments * default_fragment_elements) {
    for (std::size_t f = 0; f < fragments; ++f) {
      float* const values = buffer(f, 0);
      for (std::size_t n = 0; n < default_fragment_elements; ++n)
        values[n] = 0.5F + offset * static_cast<float>((n * 7 + f) % 101) * 0x1p-10F;
    }
    steps.assign(fragments, gossip::BlockSteps(fragment_blocks));
  }
  [[nodiscard]] float* buffer(std::size_t fragment, std::size_t which) {
    return memory.data() + (fragment * 3 + which) * default_fragment_elements;
  }
  /// A fragment that a client has just published, with nothing to correct.
  [[nodiscard]] gossip::FragmentBuffers published(std::size_t fragment) {
    return {{buffer(fragment, 0), buffer(fragment, 1), buffer(fragment, 2)}, fragment_blocks, {}};
  }
  std::vector<float> memory;
  std::vector<gossip::BlockSteps> steps;
};

struct Times {
  std::vector<double> encode_s, answer_s, conclude_s;
};

template <class Work>
void measure(std::vector<double>& seconds, Work&& work) {
  const double begin_s = own_cpu_s();
  work();
  seconds.push_back(own_cpu_s() - begin_s);
}

/// One exchange of a fragment with the same seed each time, so that the learned steps settle.
void exchange(Codec codec, std::uint32_t f, BenchReplica& initiator, BenchReplica& responder, Times& times) {
  gossip::FragmentBuffers ours = initiator.published(f);
  gossip::FragmentBuffers theirs = responder.published(f);
  gossip::EncodeTask::Result encoded;
  measure(times.encode_s, [&] {
    encoded = gossip::EncodeTask{.request = {.fragment = f, .codec = codec, .seed = f}}.run({ours, initiator.steps[f]});
  });
  gossip::AnswerTask::Result answered;
  gossip::AnswerTask answer{.request = std::move(encoded.request)};
  measure(times.answer_s, [&] { answered = std::move(answer).run({theirs, responder.steps[f]}); });
  if (answered.reply.status != ReplyStatus::done) throw std::logic_error("an exchange was refused");
  gossip::ConcludeTask conclude{.reply = std::move(answered.reply),
                                .blocks = std::move(encoded.blocks),
                                .exponents = std::move(encoded.exponents)};
  measure(times.conclude_s, [&] { (void)std::move(conclude).run({ours, initiator.steps[f]}); });
}

}  // namespace

KernelCosts kernel_costs(Codec codec) {
  BenchReplica initiator(0.0F), responder(1.0F);
  Times times;
  for (std::size_t round = 0; round < rounds; ++round) {
    if (round == 1) times = {};
    for (std::uint32_t f = 0; f < fragments; ++f)
      exchange(codec, f, initiator, responder, times);
  }
  const auto payload_bytes = static_cast<double>(fragment_blocks * codec_block_bytes(codec));
  const auto ns_per_byte = [&](std::vector<double>& seconds) {
    return spread_of(std::move(seconds)).median * 1e9 / payload_bytes;
  };
  return {ns_per_byte(times.encode_s), ns_per_byte(times.answer_s), ns_per_byte(times.conclude_s)};
}

}  // namespace gossamer::bench
