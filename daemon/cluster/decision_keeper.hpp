// Writes what a cluster has decided: who is denied, who has a certificate, and who said so. On a tick, so that much
// that comes together costs one write; at once where somebody waits for it or nothing comes after. Denials and
// certificates that cannot be written are tried again; the audit goes with the next denials.
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

  void denials_changed() { denials_changed_ = true; }
  void certificates_changed() { certificates_changed_ = true; }
  void tick(const peer::Overlay& overlay, TimeUs now_us);
  /// For the end, since no tick comes after.
  void keep_changed(const peer::Overlay& overlay, TimeUs now_us);
  /// Says what could not be written.
  std::expected<void, std::string> keep_all(const peer::Overlay& overlay, TimeUs now_us);

 private:
  std::expected<void, std::string> keep_denials(const peer::Overlay& overlay, TimeUs now_us);
  std::expected<void, std::string> keep_certificates(const peer::Overlay& overlay, TimeUs now_us);

  const ClusterState& state_;
  spdlog::logger& log_;
  bool denials_changed_ = false;
  bool certificates_changed_ = false;
  TimeUs next_denials_us_ = 0;
  TimeUs next_certificates_us_ = 0;
};

}  // namespace gossamer::daemon
