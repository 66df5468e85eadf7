#include "gossip/exchange/device.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <vector>

#include "gossip/exchange/outer.hpp"

namespace gossamer::gossip {
namespace {

/// The size of a cache line. No kernel needs this alignment, but all run faster with it.
constexpr std::align_val_t alignment{64};

class Processor final : public Device {
 public:
  Floats allocate(std::size_t elements) const override {
    void* const memory = ::operator new(elements * sizeof(float), alignment, std::nothrow);
    return Floats(static_cast<float*>(memory), Release{this});
  }
  bool clear(float* memory, std::size_t elements) const override {
    std::fill_n(memory, elements, 0.0F);
    return true;
  }
  bool copy(float* to, const float* from, std::size_t elements) const override {
    std::copy_n(from, elements, to);
    return true;
  }
  bool upload(float* to, std::span<const float> from) const override {
    std::ranges::copy(from, to);
    return true;
  }
  bool download(std::span<float> to, const float* from) const override {
    std::copy_n(from, to.size(), to.data());
    return true;
  }

  bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
              std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
              std::span<std::byte> values) const override {
    return gossip::encode(codec, y, blocks, seed, exponents, checks, values);
  }
  bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                  std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                  std::span<const std::byte> values, std::span<std::byte> differences,
                  std::span<BlockOutcome> outcomes) const override {
    return gossip::difference(codec, y, blocks, seed, exponents, checks, values, differences, outcomes);
  }
  bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                   std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) const override {
    return gossip::outcomes_of(codec, exponents, differences, wide, outcomes);
  }
  bool apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
             std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
             const float* in, float* out) const override {
    gossip::apply(codec, shift, sign, blocks, exponents, differences, block_count, in, out);
    return true;
  }
  bool sum(const FragmentView& y, std::size_t block_count, float* out) const override {
    return gossip::sum(y, block_count, out);
  }
  bool outer_step(const OuterOptions& options, const OuterFragment& fragment) const override {
    return gossip::outer_step(options, fragment);
  }
  bool local_mean(std::span<const ClientFragment> clients, std::span<float> y,
                  std::span<LocalMeanOutcome> outcomes) const override {
    gossip::local_mean(clients, y, outcomes);
    return true;
  }
  std::string name() const override { return "processor"; }

 private:
  void release(float* memory) const override { ::operator delete(memory, alignment); }
};

}  // namespace

bool Device::read(const FragmentView& y, std::span<const std::uint32_t> blocks, std::span<float> values) const {
  return encode(Codec::f32, y, blocks, 0, {}, {}, std::as_writable_bytes(values));
}

bool Device::read(const FragmentView& y, std::size_t block_count, std::span<float> values) const {
  std::vector<std::uint32_t> blocks(block_count);
  std::iota(blocks.begin(), blocks.end(), 0U);
  return read(y, blocks, values);
}

const Device& processor() {
  static const Processor only;
  return only;
}

}  // namespace gossamer::gossip
