// Memory that a client shares with one of the machine's GPUs: GPU memory that the daemon maps, or pinned host memory.
//
// Devices makes these objects (daemon/clients/devices.hpp). Their functions may be called on any thread. The GPU stays
// open as long as one such object exists. The mapping ends with the object's last owner, on the thread of Devices,
// since ending it may wait for the driver.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/device/cuda_device.hpp"

namespace gossamer::daemon {

/// A GPU that the daemon has opened.
struct OpenDevice {
  std::string uuid;  ///< as text, for people
  std::unique_ptr<device::CudaDevice> cuda;
};

class DeviceMemory {
 public:
  /// The destructor calls `end`, which ends the mapping.
  DeviceMemory(std::shared_ptr<const OpenDevice> device, float* begin, std::uint64_t bytes,
               std::move_only_function<void()> end)
      : device_(std::move(device)), begin_(begin), bytes_(bytes), end_(std::move(end)) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { end_(); }

  [[nodiscard]] const gossip::Device& device() const { return *device_->cuda; }
  /// Keeps the GPU open without keeping the memory mapped.
  [[nodiscard]] const std::shared_ptr<const OpenDevice>& opened() const { return device_; }
  /// The GPU's UUID, for people.
  [[nodiscard]] const std::string& gpu() const { return device_->uuid; }
  /// The address at the GPU. Pinned memory has the same address in the host.
  [[nodiscard]] float* begin() const { return begin_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const OpenDevice> device_;
  float* begin_;
  std::uint64_t bytes_;
  std::move_only_function<void()> end_;
};

}  // namespace gossamer::daemon
