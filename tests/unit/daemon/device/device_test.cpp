// Devices by their properties: the processor, and the arithmetic of the CUDA kernels with a warp that goes through its
// lanes one after the other. And what an exchange does when its device fails.

#include "gossip/exchange/device.hpp"

#include <map>

#include "catch.hpp"
#include "daemon/device/arrays.hpp"
#include "daemon/device/properties.hpp"
#include "gossip/cuda/block.hpp"
#include "gossip/exchange/exchange.hpp"
#include "gossip/untouchable_device.hpp"
#include "gossip/values.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr cuda::HostWarp<cuda::warp_lanes> warp;
constexpr cuda::HostWarp<cuda::sum_lanes> sum_warp;
template <int bits>
constexpr cuda::HostWarp<cuda::outcome_lanes<bits>> outcome_warp;

std::uint8_t* octets(std::span<std::byte> bytes, std::size_t first) {
  return reinterpret_cast<std::uint8_t*>(bytes.data()) + first;
}
const std::uint8_t* octets(std::span<const std::byte> bytes, std::size_t first) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data()) + first;
}

/// Walks over blocks as the kernels do (gossip/cuda/kernels.cuh), on the host.
class KernelsOnHost final : public PlayedDevice {
 public:
  bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
              std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
              std::span<std::byte> values) const override {
    bool finite = true;
    for (std::size_t n = 0; n < blocks.size(); ++n) {
      std::uint8_t* const out = octets(values, n * codec_block_bytes(codec));
      if (codec == Codec::f32) {
        finite = copied(y, blocks[n], reinterpret_cast<float*>(out)) && finite;
      } else {
        const auto kernel =
            codec == Codec::q8 ? cuda::encode_block<8, cuda::HostWarp<32>> : cuda::encode_block<4, cuda::HostWarp<32>>;
        finite = kernel(warp, y, blocks[n], seed, &exponents[n], &checks[n], out) && finite;
      }
    }
    return finite;
  }

  bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                  std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                  std::span<const std::byte> values, std::span<std::byte> differences,
                  std::span<BlockOutcome> outcomes) const override {
    bool finite = true;
    for (std::size_t n = 0; n < blocks.size(); ++n) {
      const std::uint8_t* const sent = octets(values, n * codec_block_bytes(codec));
      std::uint8_t* const out = octets(differences, n * codec_block_bytes(codec));
      if (codec == Codec::f32) {
        finite = cuda::difference_block_f32(sum_warp, y, blocks[n], reinterpret_cast<const float*>(sent),
                                            reinterpret_cast<float*>(out), &outcomes[n]) &&
                 finite;
      } else {
        const auto kernel = codec == Codec::q8 ? cuda::difference_block<8, cuda::HostWarp<32>>
                                               : cuda::difference_block<4, cuda::HostWarp<32>>;
        finite = kernel(warp, y, blocks[n], seed, exponents[n], checks[n], sent, out, &outcomes[n]) && finite;
      }
    }
    return finite;
  }

  bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                   std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) const override {
    bool finite = true;
    for (std::size_t n = 0; n < outcomes.size(); ++n) {
      const std::uint8_t* const block = octets(differences, n * codec_block_bytes(codec));
      const bool is_wide = !wide.empty() && (wide[n / 8] >> (n % 8) & std::byte{1}) != std::byte{0};
      if (codec == Codec::f32) {
        const auto* const values = reinterpret_cast<const float*>(block);
        finite = cuda::outcome_block_f32(sum_warp, values, is_wide, &outcomes[n]) && finite;
      } else if (codec == Codec::q8) {
        cuda::outcome_block<8>(outcome_warp<8>, exponents[n], block, is_wide, &outcomes[n]);
      } else {
        cuda::outcome_block<4>(outcome_warp<4>, exponents[n], block, is_wide, &outcomes[n]);
      }
    }
    return finite;
  }

  bool apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
             std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
             const float* in, float* out) const override {
    const auto listed = static_cast<std::uint32_t>(blocks.size());
    const auto kernel = codec == Codec::f32  ? cuda::apply_lane<Codec::f32>
                        : codec == Codec::q8 ? cuda::apply_lane<Codec::q8>
                                             : cuda::apply_lane<Codec::q4>;
    for (std::uint32_t block = 0; block < block_count; ++block) {
      const std::uint32_t n = cuda::place_of(block, blocks.data(), listed, static_cast<std::uint32_t>(block_count));
      const bool has = n < listed;
      const float weight = parts::commit_weight(sign, has && codec != Codec::f32 ? exponents[n] : 0, shift);
      const std::size_t first = block * block_elements;
      for (unsigned lane = 0; lane < cuda::warp_lanes; ++lane) {
        kernel(has ? octets(differences, n * codec_block_bytes(codec)) : nullptr, weight,
               in == nullptr ? nullptr : in + first, out + first, lane);
      }
    }
    return true;
  }

  bool sum(const FragmentView& y, std::size_t block_count, float* out) const override {
    bool finite = true;
    for (std::size_t block = 0; block < block_count; ++block)
      finite = copied(y, block, out + block * block_elements) && finite;
    return finite;
  }

  bool outer_step(const OuterOptions& options, const OuterFragment& fragment) const override {
    const auto left_out = device::bounds_of(fragment.left_out);
    const auto outer = device::arrays_of(options, fragment, left_out);
    const auto elements = static_cast<std::uint32_t>(fragment.block_count * block_elements);
    for (std::uint32_t e = 0; e < elements; ++e) {
      if (!cuda::outer_element(outer, e).finite) return false;
    }
    for (std::uint32_t e = 0; e < elements; ++e)
      cuda::write_outer_element(outer, e);
    return true;
  }

  bool local_mean(std::span<const ClientFragment> clients, std::span<float> y,
                  std::span<LocalMeanOutcome> outcomes) const override {
    for (std::size_t c = 0; c < clients.size(); ++c) {
      const cuda::ClientArrays arrays = device::arrays_of(clients[c]);
      for (std::size_t e = 0; e < y.size() && clients[c].take != Take::nothing; e += 4)
        outcomes[c].finite = cuda::mean_finite(arrays, e) && outcomes[c].finite;
    }
    for (std::size_t e = 0; e < y.size(); e += 4) {
      cuda::Four values = cuda::load_four(&y[e]);
      for (std::size_t c = 0; c < clients.size(); ++c) {
        if (clients[c].take != Take::progress || !outcomes[c].finite) continue;
        outcomes[c].moved = cuda::mean_take(device::arrays_of(clients[c]), e, values) || outcomes[c].moved;
      }
      cuda::store_four(&y[e], values);
      for (std::size_t c = 0; c < clients.size(); ++c) {
        if (clients[c].correction == nullptr || !outcomes[c].finite) continue;
        outcomes[c].differs = cuda::mean_correct(device::arrays_of(clients[c]), e, values) || outcomes[c].differs;
      }
    }
    return true;
  }

  std::string name() const override { return "the kernels, on the host"; }

 private:
  static bool copied(const FragmentView& y, std::size_t block, float* out) {
    bool finite = true;
    for (unsigned lane = 0; lane < cuda::warp_lanes; ++lane)
      finite = cuda::copy_lane(y, block, lane, out) < parts::infinity_bits && finite;
    return finite;
  }
};

/// Fails one kind of call, and counts all calls.
class FailingDevice final : public PlayedDevice {
 public:
  explicit FailingDevice(const char* failing) : failing_(failing) {}

  mutable std::map<std::string, int> calls;

 private:
  bool begins(const char* call) const override {
    ++calls[call];
    return std::string(failing_) != call;
  }
  const char* failing_;
};

/// One end of an exchange; its client holds the fragment, so that a commit goes to memory made for it.
struct End {
  explicit End(const std::vector<float>& values, const Device& device = processor())
      : memory{values, std::vector<float>(values.size()), std::vector<float>(values.size())},
        buffers({memory[0].data(), memory[1].data(), memory[2].data()}, values.size() / block_elements,
                {.generation = 1}, device),
        steps(values.size() / block_elements) {}
  HeldFragment held() { return {.buffers = buffers, .steps = steps, .outer = &outer}; }

  std::vector<std::vector<float>> memory;
  FragmentBuffers buffers;
  BlockSteps steps;
  OuterState outer;
};

std::vector<float> random_values(int seed) {
  values::Random random(seed);
  return values::sampled(random, 4 * block_elements, values::normal);
}

struct Halves {
  EncodeTask::Result asked;
  AnswerTask::Result answered;
};

Halves ask(End& initiator, End& responder) {
  EncodeTask encode{.request = {.counter = 1, .codec = Codec::f32, .seed = 7}};
  Halves halves;
  halves.asked = std::move(encode).run(initiator.held());
  AnswerTask answer{.request = halves.asked.request, .range = 1e9F};
  halves.answered = std::move(answer).run(responder.held());
  return halves;
}

}  // namespace

TEST_CASE("every device does what the definitions say", "[device]") {
  const KernelsOnHost kernels;
  const UntouchableDevice untouchable;
  for (const Device* device :
       {&processor(), static_cast<const Device*>(&kernels), static_cast<const Device*>(&untouchable)}) {
    for (const properties::Property& property : properties::all()) {
      INFO(device->name() << ": " << property.name);
      properties::Memory memory(*device);
      CHECK(property.check(*device, memory) == "");
    }
  }
}

TEST_CASE("the properties find a device that differs", "[device]") {
  // One call of each property fails. A property that does not look at it would pass.
  const char* const calls[] = {"encode", "difference", "outcomes_of", "apply", "sum",
                               "encode", "outer_step", "local_mean",  "copy"};
  REQUIRE(std::size(calls) == properties::all().size());
  for (std::size_t n = 0; n < std::size(calls); ++n) {
    // For this property a failure looks right.
    if (properties::all()[n].name == "numbers that are not finite") continue;
    INFO(properties::all()[n].name);
    const FailingDevice device(calls[n]);
    properties::Memory memory(device);
    CHECK(properties::all()[n].check(device, memory) != "");
  }
}

TEST_CASE("a fragment's device does all the arithmetic of an exchange", "[device]") {
  const FailingDevice device("nothing");
  End initiator(random_values(1), device);
  End responder(random_values(2), device);
  const Halves halves = ask(initiator, responder);
  REQUIRE(halves.answered.commit);
  ConcludeTask conclude{
      .reply = halves.answered.reply, .blocks = halves.asked.blocks, .exponents = halves.asked.exponents};
  CHECK(std::move(conclude).run(initiator.held()).commit);
  // Encoding is done once to be sent, once at each end for its first steps, and once at each end for its magnitude.
  CHECK(device.calls == std::map<std::string, int>{{"encode", 5}, {"difference", 1}, {"outcomes_of", 1}, {"apply", 2}});
}

TEST_CASE("where a device fails nothing is committed, and the other end is told", "[device]") {
  for (const char* const failing : {"difference", "apply"}) {
    INFO(failing);
    const FailingDevice device(failing);
    End initiator(random_values(1));
    End responder(random_values(2), device);
    const Halves halves = ask(initiator, responder);
    CHECK_FALSE(halves.answered.commit);
    CHECK(halves.answered.reply.status == ReplyStatus::refused);
    CHECK_FALSE(responder.buffers.has_correction());
  }
}

TEST_CASE("where a device fails an outer step changes nothing", "[device]") {
  const FailingDevice device("outer_step");
  End end(random_values(1), device);
  const OuterOptions options{.momentum = 0.5F};
  REQUIRE(OuterTask{options}.run(end.held()).finite);  // sets the anchor
  const auto result = OuterTask{options}.run(end.held());
  CHECK_FALSE(result.finite);
  CHECK_FALSE(result.commit);
  CHECK_FALSE(end.buffers.has_correction());
}

TEST_CASE("where a device fails nothing is taken of any client", "[device]") {
  std::vector<float> y(block_elements);
  const LocalMeanTask task{{ClientFragment{}, ClientFragment{}}};
  for (const auto& outcome : task.run(y, FailingDevice("local_mean")))
    CHECK_FALSE((outcome.reached || outcome.written));
}
