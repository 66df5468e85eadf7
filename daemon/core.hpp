// The daemon's core as its shell (signals, sockets, systemd) sees it: the node with its jobs and its overlay.
//
// Implemented by Node. All calls come from the loop's thread.

#pragma once

#include <chrono>
#include <expected>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "daemon/clients/client_listener.hpp"
#include "daemon/config/config.hpp"
#include "daemon/control/control_commands.hpp"
#include "daemon/report/status.hpp"

namespace gossamer::daemon {

class Core : public ClientEvents {
 public:
  [[nodiscard]] virtual NodeId id() const = 0;

  /// The shell adds what it knows itself: version, state, uptime, CPU time, clients and their memory.
  [[nodiscard]] virtual NodeStatus node_status() const = 0;
  [[nodiscard]] virtual std::vector<PeerStatus> peer_statuses() const = 0;
  [[nodiscard]] virtual std::vector<ClusterMemberStatus> member_statuses() const = 0;
  [[nodiscard]] virtual std::vector<JobStatus> job_statuses() const = 0;
  /// The other nodes' reports about themselves; in a large cluster, only some of them.
  [[nodiscard]] virtual std::vector<SummaryStatus> summary_statuses() const = 0;

  /// Problems of the node itself, such as a disk that does not answer.
  [[nodiscard]] virtual std::vector<FindingStatus> troubles() const { return {}; }

  /// The devices that map clients' GPU memory. Null: there are none.
  [[nodiscard]] virtual Devices* devices() { return nullptr; }

  /// The control commands that the core answers, in addition to the shell's.
  [[nodiscard]] virtual std::vector<ControlCommand> control_commands() { return {}; }

  /// Applies the options that may change at run time; see reload() in config.hpp.
  virtual void reconfigure(const Config& config) = 0;

  /// Names for the audit the person who gives the commands that are answered from now on. Empty: nobody.
  virtual void set_operator(std::string /*who*/) {}

  /// A drained node takes part in no exchange, while its links and clients stay. A restart ends the drained state.
  virtual void set_drained(bool drained) = 0;
  [[nodiscard]] virtual bool drained() const = 0;

  /// Makes the handover, which takes `patience` at most, and then does what begin_stop() does.
  virtual void begin_leave(std::chrono::microseconds patience, std::function<void()> stopped) = 0;

  /// Starts nothing new, finishes the work under way and says goodbye to the neighbours. Then it calls `stopped` once,
  /// from the loop. Clients stay attached; the shell waits for stop_grace at most.
  virtual void begin_stop(std::function<void()> stopped) = 0;

  /// Opens the socket at which processes ask for exact averages (sdk/layout/average.hpp). `rights` outlives the core. A
  /// reload changes its content before it calls reconfigure().
  virtual std::expected<void, std::string> open_averages(const std::filesystem::path& /*socket*/,
                                                         const UserRights& /*rights*/) {
    return {};
  }
};

}  // namespace gossamer::daemon
