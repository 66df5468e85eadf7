// Holds all connections of a node to one network interface, on machines that have several. Without that, a host name or
// the default route may lead to a slow management network.
//
// Any thread.

#pragma once

#include <expected>
#include <string>

namespace gossamer::peer {

/// Checks that connections can be held to the interface; an empty name is always fine. The error says which interfaces
/// this machine has, or what right is missing.
[[nodiscard]] std::expected<void, std::string> check_interface(const std::string& name);

/// To be called before the descriptor listens or connects. Returns 0 or the error of errno.
[[nodiscard]] int hold_to_interface(int descriptor, const std::string& name);

}  // namespace gossamer::peer
