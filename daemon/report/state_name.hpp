// The name of a replica's state as people read it, in the status and on the status page.

#pragma once

#include <array>

#include "gossip/messages.hpp"

namespace gossamer::daemon {

[[nodiscard]] constexpr const char* state_name(ReplicaState state) {
  constexpr std::array names = {"absent", "joining", "running", "draining"};
  const auto number = static_cast<std::size_t>(state);
  return number < names.size() ? names[number] : "unknown";
}

}  // namespace gossamer::daemon
