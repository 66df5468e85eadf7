// Where a fragment's numbers are, and what computes on them: the processor, or an accelerator. The work of an exchange
// (gossip/exchange/exchange.hpp), of an outer step and of the mean among a node's clients goes through this interface,
// whoever implements it; all implementations give the same bits.
//
// What is as long as a fragment (views, `in`, `out`, anchors, snapshots) lies in the device's memory. What goes to or
// comes from the network, and the lists of blocks, are in the host's. Calls come from workers, several at a time, each
// about a fragment that is held for it; they return when the result is there.
//
// The processor fails only for want of memory; another device can be lost at any time. A call that fails returns false,
// like one that found a number that is not finite, and nothing of it may be committed; failure() then says what
// happened.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "gossip/codec/lattice.hpp"
#include "gossip/exchange/local_mean.hpp"

namespace gossamer::gossip {

struct OuterFragment;
struct OuterOptions;

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // --- its memory
  struct Release {
    const Device* device = nullptr;
    void operator()(float* memory) const { device->release(memory); }
  };
  /// Floats in the device's memory. Must be gone before the device is.
  using Floats = std::unique_ptr<float[], Release>;
  /// Of any value. Null if there is no room for them; the device is then as it was.
  [[nodiscard]] virtual Floats allocate(std::size_t elements) const = 0;
  [[nodiscard]] virtual bool clear(float* memory, std::size_t elements) const = 0;
  /// Within the device; between it and the host. As long as the first argument, which is written.
  [[nodiscard]] virtual bool copy(float* to, const float* from, std::size_t elements) const = 0;
  [[nodiscard]] virtual bool upload(float* to, std::span<const float> from) const = 0;
  [[nodiscard]] virtual bool download(std::span<float> to, const float* from) const = 0;

  /// As the functions of these names in gossip/codec/lattice.hpp.
  [[nodiscard]] virtual bool encode(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks,
                                    std::uint64_t seed, std::span<std::int8_t> exponents,
                                    std::span<std::uint16_t> checks, std::span<std::byte> values) const = 0;
  [[nodiscard]] virtual bool difference(Codec codec, const FragmentView& y, std::span<const std::uint32_t> blocks,
                                        std::uint64_t seed, std::span<const std::int8_t> exponents,
                                        std::span<const std::uint16_t> checks, std::span<const std::byte> values,
                                        std::span<std::byte> differences, std::span<BlockOutcome> outcomes) const = 0;
  [[nodiscard]] virtual bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents,
                                         std::span<const std::byte> differences, std::span<const std::byte> wide,
                                         std::span<BlockOutcome> outcomes) const = 0;
  [[nodiscard]] virtual bool apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
                                   std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                                   std::size_t block_count, const float* in, float* out) const = 0;
  [[nodiscard]] virtual bool sum(const FragmentView& y, std::size_t block_count, float* out) const = 0;

  /// y on the host: of the blocks listed, as encode() for f32 has it; or of all `block_count`.
  [[nodiscard]] bool read(const FragmentView& y, std::span<const std::uint32_t> blocks, std::span<float> values) const;
  [[nodiscard]] bool read(const FragmentView& y, std::size_t block_count, std::span<float> values) const;

  /// As gossip::outer_step().
  [[nodiscard]] virtual bool outer_step(const OuterOptions& options, const OuterFragment& fragment) const = 0;

  /// As gossip::local_mean(); false if the device failed.
  [[nodiscard]] virtual bool local_mean(std::span<const ClientFragment> clients, std::span<float> y,
                                        std::span<LocalMeanOutcome> outcomes) const = 0;

  /// What the device is, for people.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Why the device can no longer be used; empty while it can.
  [[nodiscard]] virtual std::string failure() const { return {}; }

 private:
  virtual void release(float* memory) const = 0;
};

/// The processor: SIMD kernels on the host's memory. It has no state, so that one serves everybody.
[[nodiscard]] const Device& processor();

}  // namespace gossamer::gossip
