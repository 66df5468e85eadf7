// NVIDIA's management library, loaded on first use: what it says about the GPUs, and the errors that it reports.
//
// A call may take as long as the driver likes, and hang with a broken GPU, so it belongs in a thread or a process that
// may hang. One thread at a time. A figure that a driver or a GPU does not have is absent. A lost GPU is reported with
// what was known about it before.

#pragma once

#include <chrono>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/gpus/gpu.hpp"
#include "daemon/gpus/nvml_types.hpp"

namespace gossamer::gpus {

/// Bounds the memory that a driver's answer can take in this process.
inline constexpr unsigned max_gpus = 64;
inline constexpr unsigned max_mig_devices = 16;
inline constexpr unsigned max_processes = 256;

struct XidEvent {
  std::string uuid;  ///< the GPU's; empty: the driver did not say
  std::uint32_t code = 0;
};

class Nvml {
 public:
  /// `library` is a name that the loader finds, or a path. The error is a text for people: there is no driver, or it
  /// does not work.
  [[nodiscard]] static std::expected<Nvml, std::string> open(const std::string& library);
  Nvml(Nvml&& other) noexcept;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  [[nodiscard]] const std::string& driver() const { return driver_; }
  /// All GPUs, with their health judged. An error means that the driver has gone and must be opened again.
  [[nodiscard]] std::expected<std::vector<Gpu>, std::string> read();

  /// Asks the driver to report errors of the GPUs that are there now, as far as driver and GPU can.
  void listen();
  [[nodiscard]] bool tells_events() const { return events_ != nullptr; }
  /// Returns nothing when `patience` is over. After an error tells_events() is false.
  [[nodiscard]] std::optional<XidEvent> wait_for_xid(std::chrono::milliseconds patience);

 private:
  explicit Nvml(void* library) : library_(library) {}
  [[nodiscard]] std::expected<void, std::string> load();
  void stop_listening();
  [[nodiscard]] std::string error_text(int result) const;
  void read_identity(nvml::NvmlDevice device, Gpu& gpu);
  /// Reads all figures. Fails if the GPU fails to tell even its memory. A figure that the GPU does not have is left
  /// out.
  [[nodiscard]] int read_figures(nvml::NvmlDevice device, Gpu& gpu) const;
  void read_errors(nvml::NvmlDevice device, Gpu& gpu) const;
  void read_mig(nvml::NvmlDevice device, Gpu& gpu) const;
  void read_processes(nvml::NvmlDevice device, Gpu& gpu) const;

  void* library_;
  bool initialised_ = false;
  nvml::Functions call_;
  std::string driver_;
  nvml::EventSet events_ = nullptr;
  std::map<nvml::NvmlDevice, std::string> uuids_;  // the GPUs whose errors are listened to: at most max_gpus
  std::map<unsigned, Gpu> known_;                  // what is known of each GPU, by index: at most max_gpus
};

}  // namespace gossamer::gpus
