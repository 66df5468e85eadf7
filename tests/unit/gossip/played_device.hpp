// A device for tests that passes every call on to the processor. Devices derived from it make calls fail (begins()), or
// keep their memory at other addresses than they say (distance()).

#pragma once

#include <vector>

#include "gossip/exchange/device.hpp"
#include "gossip/exchange/outer.hpp"

namespace gossamer::gossip {

class PlayedDevice : public Device {
 public:
  Floats allocate(std::size_t elements) const override {
    if (!begins("allocate")) return {};
    return processor().allocate(elements);
  }
  bool clear(float* memory, std::size_t elements) const override {
    return begins("clear") && processor().clear(inside(memory), elements);
  }
  bool copy(float* to, const float* from, std::size_t elements) const override {
    return begins("copy") && processor().copy(inside(to), inside(from), elements);
  }
  bool upload(float* to, std::span<const float> from) const override {
    return begins("upload") && processor().upload(inside(to), from);
  }
  bool download(std::span<float> to, const float* from) const override {
    return begins("download") && processor().download(to, inside(from));
  }

  bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
              std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
              std::span<std::byte> values) const override {
    return begins("encode") && processor().encode(codec, inside(y), blocks, seed, exponents, checks, values);
  }
  bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks, std::uint64_t seed,
                  std::span<const std::int8_t> exponents, std::span<const std::uint16_t> checks,
                  std::span<const std::byte> values, std::span<std::byte> differences,
                  std::span<BlockOutcome> outcomes) const override {
    return begins("difference") &&
           processor().difference(codec, inside(y), blocks, seed, exponents, checks, values, differences, outcomes);
  }
  bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                   std::span<const std::byte> wide, std::span<BlockOutcome> outcomes) const override {
    return begins("outcomes_of") && processor().outcomes_of(codec, exponents, differences, wide, outcomes);
  }
  bool apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
             std::span<const std::int8_t> exponents, std::span<const std::byte> differences, std::size_t block_count,
             const float* in, float* out) const override {
    return begins("apply") &&
           processor().apply(codec, shift, sign, blocks, exponents, differences, block_count, inside(in), inside(out));
  }
  bool sum(const FragmentView& y, std::size_t block_count, float* out) const override {
    return begins("sum") && processor().sum(inside(y), block_count, inside(out));
  }
  bool outer_step(const OuterOptions& options, const OuterFragment& fragment) const override {
    OuterFragment there = fragment;
    there.y = inside(fragment.y);
    there.in = inside(fragment.in);
    there.out = inside(fragment.out);
    there.anchor = inside(fragment.anchor);
    there.momentum = inside(fragment.momentum);
    return begins("outer_step") && processor().outer_step(options, there);
  }
  bool local_mean(std::span<const ClientFragment> clients, std::span<float> y,
                  std::span<LocalMeanOutcome> outcomes) const override {
    std::vector<ClientFragment> there(clients.begin(), clients.end());
    for (ClientFragment& client : there) {
      client.snapshot = inside(client.snapshot);
      client.base = inside(client.base);
      client.base_correction = inside(client.base_correction);
      client.correction = inside(client.correction);
    }
    return begins("local_mean") && processor().local_mean(there, {inside(y.data()), y.size()}, outcomes);
  }

  std::string name() const override { return "played"; }

 protected:
  /// False: the call fails.
  virtual bool begins(const char* /*call*/) const { return true; }
  /// Where the processor finds an element of the device's memory. Null stays null.
  virtual std::ptrdiff_t distance(const float* /*memory*/) const { return 0; }

 private:
  template <class Float>
  Float* inside(Float* memory) const {
    return memory == nullptr ? nullptr : memory + distance(memory);
  }
  FragmentView inside(const FragmentView& y) const {
    return {.publication = inside(y.publication), .correction = inside(y.correction)};
  }
  void release(float* /*memory*/) const override {}  // the processor's, which releases it
};

}  // namespace gossamer::gossip
