// The memory that holds a fragment's numbers, and the device that computes on them: the processor or an accelerator.
// The work of an exchange (gossip/exchange/exchange.hpp), of an outer step and of the mean among a node's clients goes
// through this interface. All implementations give the same bits.
//
// Everything as long as a fragment (views, `in`, `out`, anchors, snapshots) is in the device's memory. Network data and
// the lists of blocks are in the host's memory. Workers make the calls, several at a time, each for a fragment that is
// held for it. A call returns when its result is there.
//
// The processor fails only for lack of memory; another device can be lost at any time. A call returns false if it fails
// or finds a number that is not finite. Then nothing of it may be committed. failure() says why a device was lost.

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
  /// Floats in the device's memory. They must be freed before the device is destroyed.
  using Floats = std::unique_ptr<float[], Release>;
  /// Their values are undefined. Null if there is no room; the device is then unchanged.
  [[nodiscard]] virtual Floats allocate(std::size_t elements) const = 0;
  [[nodiscard]] virtual bool clear(float* memory, std::size_t elements) const = 0;
  /// copy() works within the device, upload() and download() between it and the host. The first argument is written.
  [[nodiscard]] virtual bool copy(float* to, const float* from, std::size_t elements) const = 0;
  [[nodiscard]] virtual bool upload(float* to, std::span<const float> from) const = 0;
  [[nodiscard]] virtual bool download(std::span<float> to, const float* from) const = 0;

  /// The functions of the same names in gossip/codec/lattice.hpp define these.
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

  /// Copies y to the host: the listed blocks, as encode() for f32 gives them, or all `block_count` blocks.
  [[nodiscard]] bool read(const FragmentView& y, std::span<const std::uint32_t> blocks, std::span<float> values) const;
  [[nodiscard]] bool read(const FragmentView& y, std::size_t block_count, std::span<float> values) const;

  /// gossip::outer_step() defines this.
  [[nodiscard]] virtual bool outer_step(const OuterOptions& options, const OuterFragment& fragment) const = 0;

  /// gossip::local_mean() defines this. False if the device failed.
  [[nodiscard]] virtual bool local_mean(std::span<const ClientFragment> clients, std::span<float> y,
                                        std::span<LocalMeanOutcome> outcomes) const = 0;

  /// The name of the device, for people.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Roughly how long the device's work for gossip has held up training on it so far, in microseconds. 0 for the
  /// processor, whose cores the system shares out.
  [[nodiscard]] virtual double taken_us() const { return 0; }
  /// The reason why the device can no longer be used; empty while it can.
  [[nodiscard]] virtual std::string failure() const { return {}; }

 private:
  virtual void release(float* memory) const = 0;
};

/// The processor: SIMD kernels on the host's memory. It has no state, so one object serves all.
[[nodiscard]] const Device& processor();

}  // namespace gossamer::gossip
