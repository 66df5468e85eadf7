// Holding all connections of a node to one network interface, on machines that have several: what a host name resolves
// to, or the default route, may be a slow management network.
//
// Any thread.

#pragma once

#include <expected>
#include <string>

namespace gossamer::peer {

/// Whether connections can be held to it; no name: to none in particular, always. The error says what this machine has,
/// or what right is missing.
[[nodiscard]] std::expected<void, std::string> check_interface(const std::string& name);

/// Before the descriptor listens. 0 or the error of errno.
[[nodiscard]] int hold_to_interface(int descriptor, const std::string& name);

}  // namespace gossamer::peer
