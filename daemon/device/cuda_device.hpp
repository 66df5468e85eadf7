// A GPU as a device of gossip/exchange/device.hpp: loads the plug-in (daemon/device/plugin_abi.hpp), and hands what is
// asked on to it. A machine without the plug-in, without a driver or without a GPU has none, and is told in plain words
// why.
//
// A GPU whose memory is full gets arrays in host memory instead, which it reaches over the bus (overflow.hpp). The next
// array is tried in its own memory again.
//
// CudaDevice: any thread, several at a time. Memory made by it must be gone before it is.

#pragma once

#include <atomic>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>

#include "daemon/device/overflow.hpp"
#include "daemon/device/plugin_abi.hpp"
#include "gossip/exchange/device.hpp"

namespace gossamer::device {

/// As nvidia-smi and CUDA_VISIBLE_DEVICES write it: "GPU-…".
[[nodiscard]] std::string uuid_text(std::span<const std::uint8_t, 16> uuid);

/// The plug-in, in this process. It stays loaded until the process ends: the CUDA runtime cannot be unloaded in safety.
class Plugin {
 public:
  /// Where it is installed.
  [[nodiscard]] static std::filesystem::path usual_path();
  [[nodiscard]] static std::expected<Plugin, std::string> load(const std::filesystem::path& path = usual_path());

  [[nodiscard]] const PluginTable& table() const { return *table_; }
  /// How many GPUs there are; may be 0.
  [[nodiscard]] std::expected<int, std::string> count() const;
  [[nodiscard]] std::expected<DeviceInfo, std::string> describe(int device) const;

 private:
  explicit Plugin(const PluginTable& table) : table_(&table) {}
  const PluginTable* table_;
};

class CudaDevice final : public gossip::Device {
 public:
  /// Calls that work on one GPU at once; more wait for one of them.
  static constexpr std::uint32_t max_streams = 8;

  [[nodiscard]] static std::expected<std::unique_ptr<CudaDevice>, std::string> open(const Plugin& plugin, int device);
  ~CudaDevice() override;

  // --- memory shared with a client
  struct Forget {
    const CudaDevice* device = nullptr;
    std::size_t bytes = 0;
    void operator()(float* device_memory) const;
  };
  /// What another process has allocated on this GPU and exported, mapped here. The memory lives as long as either has
  /// it.
  using Mapping = std::unique_ptr<float[], Forget>;
  /// `descriptor` stays the caller's. An error says what the driver has against it, and changes nothing.
  [[nodiscard]] std::expected<Mapping, std::string> import(int descriptor, std::size_t bytes) const;

  struct Unpin {
    const CudaDevice* device = nullptr;
    void operator()(std::byte* memory) const;
  };
  /// Host memory that the GPU reads and writes at its address, over the bus.
  using Pinned = std::unique_ptr<std::byte, Unpin>;
  /// Whole pages, which outlive the result. An error as that of import().
  [[nodiscard]] std::expected<Pinned, std::string> pin(std::span<std::byte> memory) const;

  /// Has what allocate() gave released by `later`, which is handed a function to call soon, from any thread: freeing
  /// may wait for the GPU. Before the first allocation. What it keeps must be called before the device is gone.
  using Later = std::function<void(std::move_only_function<void()>)>;
  void release_by(Later later) { later_ = std::move(later); }

  // --- arrays for which the GPU had no room
  /// Of how much host memory they may be; without it, of its own HostAllowance. Before the first allocation.
  void overflow_within(std::shared_ptr<HostAllowance> allowance) { overflow_.share(std::move(allowance)); }
  /// Gives up host memory that is kept for the next of them and that nobody has wanted since the last call.
  void release_idle() const;
  [[nodiscard]] Overflow::Use overflow_use() const { return overflow_.use(); }
  /// In use now.
  [[nodiscard]] std::uint64_t overflow_bytes() const { return overflow_.bytes(); }

  struct Memory {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };
  [[nodiscard]] Memory memory() const;

  /// A training step's part: live += correction (`replace`: live = correction), then snapshot = live; nulls left out.
  [[nodiscard]] bool step(float* live, const float* correction, bool replace, float* snapshot,
                          std::uint32_t elements) const;
  /// Seconds that the device worked in this thread's last call, without the copies over the bus.
  [[nodiscard]] double last_kernel_s() const;
  [[nodiscard]] Context& context() const { return *context_; }
  [[nodiscard]] const PluginTable& plugin() const { return table_; }

  // --- gossip::Device
  [[nodiscard]] Floats allocate(std::size_t elements) const override;
  [[nodiscard]] bool clear(float* device_memory, std::size_t elements) const override;
  [[nodiscard]] bool copy(float* device_to, const float* device_from, std::size_t elements) const override;
  [[nodiscard]] bool upload(float* device_to, std::span<const float> from) const override;
  [[nodiscard]] bool download(std::span<float> to, const float* device_from) const override;
  [[nodiscard]] bool encode(Codec codec, const gossip::FragmentView& y, std::span<const std::uint32_t> blocks,
                            std::uint64_t seed, std::span<std::int8_t> exponents, std::span<std::uint16_t> checks,
                            std::span<std::byte> values) const override;
  [[nodiscard]] bool difference(Codec codec, const gossip::FragmentView& y, std::span<const std::uint32_t> blocks,
                                std::uint64_t seed, std::span<const std::int8_t> exponents,
                                std::span<const std::uint16_t> checks, std::span<const std::byte> values,
                                std::span<std::byte> differences,
                                std::span<gossip::BlockOutcome> outcomes) const override;
  [[nodiscard]] bool outcomes_of(Codec codec, std::span<const std::int8_t> exponents,
                                 std::span<const std::byte> differences, std::span<const std::byte> wide,
                                 std::span<gossip::BlockOutcome> outcomes) const override;
  [[nodiscard]] bool apply(Codec codec, int shift, int sign, std::span<const std::uint32_t> blocks,
                           std::span<const std::int8_t> exponents, std::span<const std::byte> differences,
                           std::size_t block_count, const float* in, float* out) const override;
  [[nodiscard]] bool sum(const gossip::FragmentView& y, std::size_t block_count, float* out) const override;
  [[nodiscard]] bool outer_step(const gossip::OuterOptions& options,
                                const gossip::OuterFragment& fragment) const override;
  [[nodiscard]] bool local_mean(std::span<const gossip::ClientFragment> clients, std::span<float> y,
                                std::span<gossip::LocalMeanOutcome> outcomes) const override;
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string failure() const override;

 private:
  CudaDevice(const Plugin& plugin, Context& context, std::string name);
  /// True if it went well; a failure of the device is kept for failure().
  [[nodiscard]] bool went_well(Status status) const;
  void release(float* device_memory) const override;
  void release_later(std::move_only_function<void()> free) const;

  const PluginTable& table_;
  Context* context_;
  std::string name_;
  Later later_;
  mutable std::atomic<bool> failed_ = false;
  mutable Overflow overflow_;
};

}  // namespace gossamer::device
