// All that a node keeps about its cluster across restarts: the keys, who is denied, and whom it was invited by.
//
//   cluster.key (or [overlay] cluster_key_file)  the keys of the ring; the first one is listened with
//   key_notes                                    when each key was made or retired (peer/admission/key_ring.hpp)
//   denials                                      the cluster's decisions about nodes (peer/admission/denials.hpp)
//   audit                                        who has made which decision (peer/admission/audit.hpp)
//   certificates                                 of this node and of others (peer/admission/certificates.hpp)
//   invited_by                                   addresses to dial besides the configured ones, one a line
//
// Owned by the node, on the loop's thread. Writing blocks for as long as the disk does, and is rare. A crash leaves
// each file whole, old or new. The notes are written before the keys, so that a retired key is never taken for a good
// one.

#pragma once

#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/system/state_folder.hpp"
#include "peer/admission/audit.hpp"
#include "peer/admission/certificates.hpp"
#include "peer/admission/denials.hpp"
#include "peer/admission/key_ring.hpp"

namespace gossamer::daemon {

class ClusterState {
 public:
  /// `state` outlives this object. Without a key file a key is made, which founds a cluster of its own; with
  /// `wait_to_join` the key is not saved, and serves until the node is given the cluster's. Errors say what to do.
  [[nodiscard]] static std::expected<ClusterState, std::string> load(const StateFolder& state,
                                                                     const std::filesystem::path& key_file,
                                                                     bool wait_to_join);

  /// The keys as they were at load().
  [[nodiscard]] const peer::KeyRing& key_ring() const { return ring_; }
  [[nodiscard]] const peer::Denials& denials() const { return denials_; }
  [[nodiscard]] const peer::Audit& audit() const { return audit_; }
  [[nodiscard]] const peer::Certificates& certificates() const { return certificates_; }
  [[nodiscard]] const std::vector<std::string>& invited_by() const { return invited_by_; }
  /// The node has no cluster key yet: it has made none, and was given none.
  [[nodiscard]] bool waits_to_join() const { return waits_to_join_; }

  [[nodiscard]] std::expected<void, std::string> keep(const peer::KeyRing& ring);
  [[nodiscard]] std::expected<void, std::string> keep(const peer::Denials& denials) const;
  [[nodiscard]] std::expected<void, std::string> keep(const peer::Audit& audit) const;
  [[nodiscard]] std::expected<void, std::string> keep(const peer::Certificates& certificates) const;
  [[nodiscard]] std::expected<void, std::string> keep_invited_by(std::vector<std::string> addresses);

 private:
  ClusterState(const StateFolder& state, std::filesystem::path key_file, peer::KeyRing ring)
      : state_(&state), key_file_(std::move(key_file)), ring_(std::move(ring)) {}

  const StateFolder* state_;
  std::filesystem::path key_file_;
  peer::KeyRing ring_;
  peer::Denials denials_;
  peer::Audit audit_;
  peer::Certificates certificates_;
  std::vector<std::string> invited_by_;
  bool waits_to_join_ = false;
};

}  // namespace gossamer::daemon
