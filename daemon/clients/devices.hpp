// The GPUs in whose memory the daemon works. The plug-in (daemon/device/) is loaded, and a GPU opened, when a client
// first offers a model that lies there; a machine without is told in plain words why.
//
// Asked on the loop's thread, which is never kept waiting: everything that goes into the driver here is done by one
// thread of its own, in the order in which it was asked for, since opening takes seconds and any of it may hang. What
// is asked for is bounded by who asks: the handshakes under way, and what attached clients have. If the thread hangs in
// the driver when this ends, it is left there.
//
// Invariants: a GPU that has failed is not used again until the daemon is started anew; DeviceMemory keeps its GPU
// open; what is given back goes back on that thread, in its turn.

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
#include "daemon/system/unique_fd.hpp"

namespace gossamer::daemon {

struct DevicesOptions {
  std::filesystem::path plugin;  ///< empty: where it is installed
  bool enabled = true;           ///< false: every offer is refused
  /// A GPU that takes longer to be opened counts as hanging: clients do not wait for it.
  std::chrono::milliseconds open_patience{60'000};
  /// What was missing is looked for again at the first offer after this.
  std::chrono::milliseconds retry{10'000};
  /// How long the end waits for the thread.
  std::chrono::milliseconds stop_patience{2'000};
  /// Of host memory, how much stands in for that of GPUs that are full, of all together.
  std::uint64_t overflow_bytes = device::HostAllowance::usual_bytes();
  /// Between two looks at what stands in: it is said, and given up if nobody needs it.
  std::chrono::milliseconds overflow_look{10'000};
};

class Devices {
 public:
  using Uuid = std::array<std::uint8_t, 16>;
  using Answer = std::move_only_function<void(std::expected<std::shared_ptr<DeviceMemory>, AttachRefusal>)>;

  /// All references outlive it; so may DeviceMemory that it gave.
  Devices(asio::io_context& loop, DevicesOptions options, spdlog::logger& log);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices();

  /// Maps an allocation of a client's, of which `descriptor` is what the driver exported. The answer comes on the loop,
  /// before this returns or later: device_opening, if the client is to ask again; or never, if the driver hangs.
  void map(const Uuid& gpu, UniqueFd descriptor, std::uint64_t bytes, Answer answer);
  /// Pins whole pages of host memory for an open GPU; `keeps` is held until they are no longer pinned. As map().
  void pin(const gossip::Device& device, std::span<std::byte> memory, std::shared_ptr<const void> keeps, Answer answer);

  /// GPUs that have failed since this was last asked. Each is said in the log, with what to do.
  [[nodiscard]] std::vector<const gossip::Device*> failed();
  /// To be called now and then: says in the log which GPUs have no room, and gives up host memory that stood in.
  void look_at_overflow();
  /// Of clients' GPU memory mapped now, in all.
  [[nodiscard]] std::uint64_t mapped_bytes() const;
  /// Of host memory that stands in for that of full GPUs now, in all.
  [[nodiscard]] std::uint64_t overflow_bytes() const;

 private:
  struct Shared;
  using Clock = std::chrono::steady_clock;
  /// One GPU that the plug-in sees.
  struct Known {
    enum class State : std::uint8_t { closed, opening, open, failed } state = State::closed;
    int index = 0;
    std::shared_ptr<OpenDevice> device;
    std::string why;  // it could not be opened, or has failed
    Clock::time_point since;
    bool full = false;     // host memory stood in for it when that was looked at last
    bool refused = false;  // or did not, where it was to
  };
  struct Found;

  [[nodiscard]] AttachRefusal opening(Clock::time_point since) const;
  void look();
  void looked(Found&& found);
  void open(const Uuid& uuid);
  void opened(const Uuid& uuid, const std::shared_ptr<OpenDevice>& device, const std::string& why);
  /// The GPU, open; or what a client is told instead.
  [[nodiscard]] std::expected<std::shared_ptr<OpenDevice>, AttachRefusal> use(const Uuid& uuid);
  void tell_of_overflow(Known& known, const device::Overflow::Use& use);

  const DevicesOptions options_;
  spdlog::logger& log_;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
  bool looking_ = false;
  Clock::time_point looked_at_;  // or began to
  std::string missing_;          // why there is no GPU; empty: there are some, or nobody has looked
  std::map<Uuid, Known> gpus_;   // as many as the machine has
  std::shared_ptr<device::HostAllowance> allowance_;
  Clock::time_point overflow_looked_at_;
};

}  // namespace gossamer::daemon
