// The daemon's core as its shell (signals, sockets, systemd) sees it: the node, with its jobs and its overlay.
//
// Implemented by Node. All calls come from the loop's thread.

#pragma once

#include <chrono>
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

  /// The shell fills in what it knows itself: version, state, uptime, CPU time, clients and their memory.
  [[nodiscard]] virtual NodeStatus node_status() const = 0;
  [[nodiscard]] virtual std::vector<PeerStatus> peer_statuses() const = 0;
  [[nodiscard]] virtual std::vector<ClusterMemberStatus> member_statuses() const = 0;
  [[nodiscard]] virtual std::vector<JobStatus> job_statuses() const = 0;
  /// The other nodes' reports on themselves; in a large cluster, a part of them.
  [[nodiscard]] virtual std::vector<SummaryStatus> summary_statuses() const = 0;

  /// Nothing: the disk answers, or nothing is to be written.
  [[nodiscard]] virtual std::optional<DiskTrouble> disk_trouble() const { return std::nullopt; }

  /// Where clients' GPU memory is mapped; null: nowhere.
  [[nodiscard]] virtual Devices* devices() { return nullptr; }

  /// The rows of the commands that the core answers, beside the shell's.
  [[nodiscard]] virtual std::vector<ControlCommand> control_commands() { return {}; }

  /// Takes over what may change at run time; see reload() in config.hpp.
  virtual void reconfigure(const Config& config) = 0;

  /// Takes part in no exchange, or does again; links and clients stay. A restart ends it.
  virtual void set_drained(bool drained) = 0;
  [[nodiscard]] virtual bool drained() const = 0;

  /// Hands over what was learned here by last exchanges, for at most `patience`, and then does what begin_stop does.
  virtual void begin_leave(std::chrono::microseconds patience, std::function<void()> stopped) = 0;

  /// Starts nothing new, finishes what is in flight, says goodbye to the neighbours, then calls `stopped` from the
  /// loop, once. Clients are still attached; the shell does not wait for longer than stop_grace.
  virtual void begin_stop(std::function<void()> stopped) = 0;
};

}  // namespace gossamer::daemon
