// The GPUs in whose memory the daemon works. The plug-in (daemon/device/) is loaded, and a GPU opened, when a client
// first offers a model on it. Where there is no GPU, the answer says why.
//
// Called on the loop's thread, which never waits here. One thread of its own makes all calls into the driver, in the
// order in which they were asked for, since opening a GPU takes seconds and any call may hang. The queue of that thread
// is bounded by the handshakes under way and the memory of attached clients. If the thread hangs in the driver when
// this object is destroyed, the thread is left behind.
//
// Invariants: a GPU that has failed is not used again until the daemon is restarted; DeviceMemory keeps its GPU open;
// memory is given back on that thread, in its turn.

#pragma once

#include <spdlog/logger.h>

#include <array>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/clients/client_memory.hpp"
#include "daemon/clients/device_memory.hpp"
#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

struct DevicesOptions {
  std::filesystem::path plugin;     ///< empty: the folder where it is installed
  std::filesystem::path nccl = {};  ///< empty: the plug-in asks the loader for libnccl.so.2
  bool enabled = true;              ///< false: every offer is refused
  /// A GPU that takes longer to open counts as hanging, and its clients are refused.
  std::chrono::milliseconds open_patience{60'000};
  /// After this time, another offer on a GPU that was not found or could not be opened makes the daemon try again.
  std::chrono::milliseconds retry{10'000};
  /// How long the destructor waits for the thread.
  std::chrono::milliseconds stop_patience{2'000};
  /// How much host memory may be used in all instead of the memory of full GPUs.
  std::uint64_t overflow_bytes = device::HostAllowance::usual_bytes();
  /// The time between two looks at that host memory: its use is logged, and idle memory is released.
  std::chrono::milliseconds overflow_look{10'000};
};

class Devices {
 public:
  using Uuid = std::array<std::uint8_t, 16>;
  using Answer = std::move_only_function<void(std::expected<std::shared_ptr<DeviceMemory>, AttachRefusal>)>;

  /// All references outlive the object. DeviceMemory that it gave may outlive it.
  Devices(asio::io_context& loop, DevicesOptions options, spdlog::logger& log);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices();

  /// Maps a client's allocation; `descriptor` is what the driver exported. The answer comes on the loop, before this
  /// returns or later. If it is device_opening, the client has to ask again. If the driver hangs, no answer comes.
  void map(const Uuid& gpu, FileDescriptor descriptor, std::uint64_t bytes, Answer answer);
  /// Pins whole pages of host memory for an open GPU; `keeps` is held while they are pinned. The answer is as for
  /// map().
  void pin(const gossip::Device& device, std::span<std::byte> memory, std::shared_ptr<const void> keeps, Answer answer);

  /// The GPUs that have failed since the last call. Each failure is logged with what to do.
  [[nodiscard]] std::vector<const gossip::Device*> failed();
  /// To be called regularly: logs which GPUs are full, and releases idle host memory that replaced theirs.
  void look_at_overflow();
  /// Clients' GPU memory that is mapped now, in all.
  [[nodiscard]] std::uint64_t mapped_bytes() const;
  /// Host memory that is used now instead of full GPUs' memory, in all.
  [[nodiscard]] std::uint64_t overflow_bytes() const;

 private:
  struct Shared;
  using Clock = std::chrono::steady_clock;
  /// One GPU that the plug-in sees.
  struct Known {
    enum class State : std::uint8_t { closed, opening, open, failed } state = State::closed;
    int index = 0;
    std::shared_ptr<OpenDevice> device;
    std::string why;  // why the GPU could not be opened, or has failed
    Clock::time_point since;
    bool full = false;     // at the last look, host memory was used instead of its own
    bool refused = false;  // at the last look, host memory was needed but could not be had
  };
  struct Found;

  [[nodiscard]] AttachRefusal opening(Clock::time_point since) const;
  void look();
  void looked(Found&& found);
  void open(const Uuid& uuid);
  void opened(const Uuid& uuid, const std::shared_ptr<OpenDevice>& device, const std::string& why);
  /// The open GPU, or the answer to a client that cannot have it.
  [[nodiscard]] std::expected<std::shared_ptr<OpenDevice>, AttachRefusal> use(const Uuid& uuid);
  void tell_of_overflow(Known& known, const device::Overflow::Use& use);

  const DevicesOptions options_;
  spdlog::logger& log_;
  std::shared_ptr<Shared> shared_;  // shared with the thread, which may outlive this object
  bool looking_ = false;
  Clock::time_point looked_at_;  // when the last look began, or ended if it is over
  std::string missing_;          // why there is no GPU; empty: there are some, or nobody has looked
  std::map<Uuid, Known> gpus_;   // at most the machine's GPUs
  std::shared_ptr<device::HostAllowance> allowance_;
  Clock::time_point overflow_looked_at_;
};

}  // namespace gossamer::daemon
