// A GPU as a device of gossip/exchange/device.hpp. It loads the plug-in (daemon/device/plugin_abi.hpp) and passes each
// call on to it. On a machine without the plug-in, a driver or a GPU there is no device, and the error says why.
//
// Arrays that are given back are kept for the next ones (kept_arrays.hpp).
//
// A GPU whose memory is full gets arrays in host memory instead, which it reaches over the bus (overflow.hpp). The next
// array is tried in GPU memory again.
//
// CudaDevice: any thread, several at a time. Memory that the device made must be released before the device is.

#pragma once

#include <atomic>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>

#include "daemon/device/kept_arrays.hpp"
#include "daemon/device/overflow.hpp"
#include "daemon/device/plugin_abi.hpp"
#include "gossip/exchange/device.hpp"

namespace gossamer::device {

/// The UUID as nvidia-smi and CUDA_VISIBLE_DEVICES write it: "GPU-…".
[[nodiscard]] std::string uuid_text(std::span<const std::uint8_t, 16> uuid);

/// The plug-in in this process. It stays loaded until the process ends, because the CUDA runtime cannot be unloaded
/// safely.
class Plugin {
 public:
  /// The path where the plug-in is installed, or where it is in the wheel that this program runs from.
  [[nodiscard]] static std::filesystem::path usual_path();
  [[nodiscard]] static std::expected<Plugin, std::string> load(const std::filesystem::path& path = usual_path());

  [[nodiscard]] const PluginTable& table() const { return *table_; }
  /// The number of GPUs, which may be 0.
  [[nodiscard]] std::expected<int, std::string> count() const;
  [[nodiscard]] std::expected<DeviceInfo, std::string> describe(int device) const;

 private:
  explicit Plugin(const PluginTable& table) : table_(&table) {}
  const PluginTable* table_;
};

class CudaDevice final : public gossip::Device {
 public:
  /// At most this many calls work on one GPU at once; further calls wait.
  static constexpr std::uint32_t max_streams = 8;
  /// A GPU works for one process at a time, so each call holds up the training on that GPU. taken_us() counts this time
  /// for each call (docs/explanation/gpu.md has the measurements).
  static constexpr double turn_us = 200;

  [[nodiscard]] static std::expected<std::unique_ptr<CudaDevice>, std::string> open(const Plugin& plugin, int device);
  ~CudaDevice() override;

  // --- memory shared with a client
  struct Forget {
    const CudaDevice* device = nullptr;
    std::size_t bytes = 0;
    void operator()(float* device_memory) const;
  };
  /// A mapping of memory that another process has allocated on this GPU and exported. The memory lives until both have
  /// released it.
  using Mapping = std::unique_ptr<float[], Forget>;
  /// `descriptor` stays the caller's. An error says why the driver refuses, and changes nothing.
  [[nodiscard]] std::expected<Mapping, std::string> import(int descriptor, std::size_t bytes) const;

  struct Unpin {
    const CudaDevice* device = nullptr;
    void operator()(std::byte* memory) const;
  };
  /// Host memory that the GPU reads and writes at its address, over the bus.
  using Pinned = std::unique_ptr<std::byte, Unpin>;
  /// Pins whole pages, which must outlive the result. An error is like that of import().
  [[nodiscard]] std::expected<Pinned, std::string> pin(std::span<std::byte> memory) const;

  /// Arrays of allocate() are freed through `later`, because freeing may wait for the GPU. `later` gets a function and
  /// calls it soon, on any thread, and in any case before the device is gone. Call release_by() before the first
  /// allocation.
  using Later = std::function<void(std::move_only_function<void()>)>;
  void release_by(Later later) { later_ = std::move(later); }

  // --- arrays for which the GPU had no room
  /// Limits the host memory for these arrays; otherwise the device has a HostAllowance of its own. Call this before the
  /// first allocation.
  void overflow_within(std::shared_ptr<HostAllowance> allowance) { overflow_.share(std::move(allowance)); }
  /// Frees arrays, on the GPU or in host memory, that are kept and that nobody has used since the last call.
  void release_idle() const;
  [[nodiscard]] Overflow::Use overflow_use() const { return overflow_.use(); }
  /// Bytes in use now.
  [[nodiscard]] std::uint64_t overflow_bytes() const { return overflow_.bytes(); }

  struct Memory {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };
  [[nodiscard]] Memory memory() const;

  /// The device's part of a training step: live += correction (`replace`: live = correction), then snapshot = live.
  /// Null arrays are left out.
  [[nodiscard]] bool step(float* live, const float* correction, bool replace, float* snapshot,
                          std::uint32_t elements) const;
  /// How many seconds the device worked in this thread's last call, without the copies over the bus.
  [[nodiscard]] double last_kernel_s() const { return table_.last_kernel_s(context_); }
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
  [[nodiscard]] double taken_us() const override;
  [[nodiscard]] std::string failure() const override { return failed_ ? table_.error(context_) : std::string(); }

 private:
  CudaDevice(const Plugin& plugin, Context& context, std::string name);
  /// True if the call went well; an error of the device is kept for failure().
  [[nodiscard]] bool went_well(Status status) const;
  /// went_well() for a call in which the GPU has worked: taken_us() counts it.
  [[nodiscard]] bool worked_well(Status status) const;
  [[nodiscard]] float* take_kept(std::size_t bytes) const;
  [[nodiscard]] bool free_idle() const;
  void release(float* device_memory) const override;
  void release_later(std::move_only_function<void()> free) const;
  [[nodiscard]] std::vector<float*> take_back(KeptArrays::Idle which) const;
  void free(float* device_memory) const;

  const PluginTable& table_;
  Context* context_;
  std::string name_;
  Later later_;
  mutable std::atomic<bool> failed_ = false;
  mutable std::atomic<std::uint64_t> calls_ = 0;  // calls in which the GPU has worked
  mutable std::mutex kept_mutex_;
  mutable KeptArrays kept_;  // guarded by kept_mutex_
  mutable Overflow overflow_;
};

}  // namespace gossamer::device
