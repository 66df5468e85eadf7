// Writes a cluster's decisions to files: its keys, who is denied, who has a certificate, and who has decided it.
// Changes are written on a tick, so that many at a time cost one write. They are written at once where somebody waits
// for that, and when the daemon ends. A write that fails is tried again, and is a trouble until then.
//
// Owned by Node, on the loop's thread; time is an argument.

#pragma once

#include <spdlog/logger.h>

#include <expected>
#include <optional>
#include <string>

#include "daemon/cluster/cluster_state.hpp"
#include "daemon/report/status.hpp"
#include "peer/overlay/overlay.hpp"

namespace gossamer::daemon {

class DecisionKeeper {
 public:
  /// `state` and `log` outlive this object.
  DecisionKeeper(ClusterState& state, spdlog::logger& log) : state_(state), log_(log) {}

  void denials_changed() { denials_.changed = audit_.changed = true; }
  void certificates_changed() { certificates_.changed = true; }
  void tick(const peer::Overlay& overlay, TimeUs now_us);
  /// Writes all changes now. This is for the daemon's end, since no tick follows.
  void keep_changed(const peer::Overlay& overlay, TimeUs now_us);
  /// Writes everything now. An error says why denials or certificates could not be written; for the audit it is only
  /// logged.
  std::expected<void, std::string> keep_all(const peer::Overlay& overlay, TimeUs now_us);
  /// Writes the keys now. If that fails, those that the overlay has then are written later.
  std::expected<void, std::string> keep(const peer::KeyRing& ring, TimeUs now_us);
  /// What could not be written, and why.
  [[nodiscard]] std::optional<FindingStatus> trouble() const;

 private:
  struct File {
    const char* unless_kept;  ///< the log's words if the file cannot be written
    TimeUs interval_us = 0;   ///< the least time between two writes
    bool changed = false;
    TimeUs next_us = 0;
    std::string failure = {};  ///< why the last write failed; empty: it did not
  };
  template <class Content>
  std::expected<void, std::string> keep(File& file, const Content& content, TimeUs now_us);

  ClusterState& state_;
  spdlog::logger& log_;
  File keys_{.unless_kept =
                 "the cluster keys, and whose signature is asked for, could not be saved: after a restart they "
                 "are as before"};
  File denials_{.unless_kept = "the deny list could not be saved, and will be lost at the next restart"};
  File certificates_{.unless_kept = "certificates could not be saved, and will be lost at the next restart",
                     .interval_us = us_per_s};
  File audit_{.unless_kept = "the list of who decided what could not be saved, and will be lost at the next restart"};
};

}  // namespace gossamer::daemon
