// Writes what a cluster has decided: who is denied, who has a certificate, and who said so. On a tick, so that much
// that comes together costs one write; at once where somebody waits for it or nothing comes after. What cannot be
// written is tried again.
//
// Owned by Node, on the loop's thread; time is an argument.

#pragma once

#include <spdlog/logger.h>

#include <expected>
#include <string>

#include "daemon/cluster/cluster_state.hpp"
#include "peer/overlay/overlay.hpp"

namespace gossamer::daemon {

class DecisionKeeper {
 public:
  /// Both outlive this object.
  DecisionKeeper(const ClusterState& state, spdlog::logger& log) : state_(state), log_(log) {}

  void denials_changed() { denials_.changed = audit_.changed = true; }
  void certificates_changed() { certificates_.changed = true; }
  void tick(const peer::Overlay& overlay, TimeUs now_us);
  /// For the end, since no tick comes after.
  void keep_changed(const peer::Overlay& overlay, TimeUs now_us);
  /// Says which decisions could not be written, and why.
  std::expected<void, std::string> keep_all(const peer::Overlay& overlay, TimeUs now_us);

 private:
  struct File {
    const char* unless_kept;  ///< what it means that it cannot be written
    TimeUs interval_us = 0;   ///< between two writes
    bool changed = false;
    TimeUs next_us = 0;
  };
  template <class Content>
  std::expected<void, std::string> keep(File& file, const Content& content, TimeUs now_us);

  const ClusterState& state_;
  spdlog::logger& log_;
  File denials_{.unless_kept = "the deny list could not be saved, and will be lost at the next restart"};
  File certificates_{.unless_kept = "certificates could not be saved, and will be lost at the next restart",
                     .interval_us = us_per_s};
  File audit_{.unless_kept = "the list of who decided what could not be saved, and will be lost at the next restart"};
};

}  // namespace gossamer::daemon
