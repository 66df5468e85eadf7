// The name of a replica's state as people read it, in the status and on the status page.

#pragma once

#include "gossip/messages.hpp"

namespace gossamer::daemon {

[[nodiscard]] constexpr const char* state_name(ReplicaState state) {
  switch (state) {
    case ReplicaState::absent:
      return "absent";
    case ReplicaState::joining:
      return "joining";
    case ReplicaState::running:
      return "running";
    case ReplicaState::draining:
      return "draining";
  }
  return "unknown";
}

}  // namespace gossamer::daemon
