// Holds nodes to the rights in their certificates, and settings of jobs to the authority's signature.
//
// What may be said is decided in daemon/cluster/permission.hpp. Owned by the node, on the loop's thread.

#pragma once

#include <spdlog/logger.h>

#include <functional>
#include <optional>
#include <string>

#include "daemon/cluster/permission.hpp"
#include "peer/overlay/overlay.hpp"
#include "peer/throttle.hpp"

namespace gossamer::daemon {

/// The properties of a job of this node that rights depend on.
struct JobHere {
  const std::string& name;
  const JobSettings& settings;
  std::function<bool()> joins;  ///< the job does not run here yet
};

class JobRights {
 public:
  /// `overlay` outlives this object.
  explicit JobRights(peer::Overlay& overlay) : overlay_(overlay), own_(overlay.rights_of(overlay.node())) {}

  /// Why this node may not train the job, or keep it, for people; nothing if it may.
  [[nodiscard]] std::optional<std::string> objection_to(std::string_view job, bool keeps) const;
  /// Whether this node may keep jobs for itself, and no more.
  [[nodiscard]] bool only_follows() const;
  [[nodiscard]] bool may_train(const NodeId& node, std::string_view job) const;
  /// Whether this node believes what the node tells of the job's model.
  [[nodiscard]] bool may_give(const NodeId& node, std::string_view job) const;
  /// False if the sender's certificate does not let it say that about the job. Removes from a JobInfo what is not
  /// believed of the sender.
  [[nodiscard]] bool admit(const NodeId& from, Message& message, const JobHere& job);
  /// How many messages were refused, or had their settings refused.
  [[nodiscard]] std::uint64_t refused() const { return refused_; }
  /// True if this node's own rights have changed since the last call.
  [[nodiscard]] bool own_have_changed();

 private:
  void note_refused(const NodeId& from, const std::string& what);

  peer::Overlay& overlay_;
  peer::Rights own_;
  std::uint64_t refused_ = 0;
};

}  // namespace gossamer::daemon
