// NVIDIA's management library, loaded when it is wanted: what it says of the GPUs, and the errors it reports.
//
// Every call may take as long as the driver likes, and hang with a broken GPU: for a thread or a process that may. One
// thread at a time. A figure that a driver or a GPU does not have is absent; a GPU that is lost is told with what was
// known of it before.

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

/// Bounds what a driver can make of this process' memory.
inline constexpr unsigned max_gpus = 64;
inline constexpr unsigned max_mig_devices = 16;
inline constexpr unsigned max_processes = 256;

struct XidEvent {
  std::string uuid;  ///< of the GPU; empty: the driver did not say
  std::uint32_t code = 0;
};

class Nvml {
 public:
  /// `library`: a name that the loader finds, or a path. An error is for people: there is no driver, or it does not
  /// work.
  [[nodiscard]] static std::expected<Nvml, std::string> open(const std::string& library);
  Nvml(Nvml&& other) noexcept;
  Nvml& operator=(Nvml&&) = delete;
  ~Nvml();

  [[nodiscard]] const std::string& driver() const { return driver_; }
  /// All GPUs, judged by their figures. An error: the driver has gone; it is to be opened again.
  [[nodiscard]] std::expected<std::vector<Gpu>, std::string> read();

  /// Asks to be told of errors: of the GPUs that are there now, as far as driver and GPU can.
  void listen();
  [[nodiscard]] bool tells_events() const { return events_ != nullptr; }
  /// Nothing when `patience` is over. After an error tells_events() is false.
  [[nodiscard]] std::optional<XidEvent> wait_for_xid(std::chrono::milliseconds patience);

 private:
  explicit Nvml(void* library) : library_(library) {}
  [[nodiscard]] std::expected<void, std::string> load();
  void stop_listening();
  [[nodiscard]] std::string error_text(int result) const;
  void read_identity(nvml::Device device, Gpu& gpu);
  /// The result of what every driver can tell.
  [[nodiscard]] int read_figures(nvml::Device device, Gpu& gpu) const;
  void read_errors(nvml::Device device, Gpu& gpu) const;
  void read_mig(nvml::Device device, Gpu& gpu) const;
  void read_processes(nvml::Device device, Gpu& gpu) const;

  void* library_;
  bool initialised_ = false;
  nvml::Functions call_;
  std::string driver_;
  nvml::EventSet events_ = nullptr;
  std::map<nvml::Device, std::string> uuids_;  // of those that are listened to: at most max_gpus
  std::map<unsigned, Gpu> known_;              // identities by index: at most max_gpus
};

}  // namespace gossamer::gpus
