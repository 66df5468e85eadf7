// Finds the addresses under which this machine can be reached, to notice that it has moved to another network.
//
// Asks the system, which takes some microseconds; any thread.

#pragma once

#include <asio/ip/address.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gossamer::peer {

struct InterfaceAddress {
  std::string interface;
  bool loopback = false;  ///< it is the loopback interface
  asio::ip::address address;
};
/// The addresses of all interfaces that are up, in the system's order. Nothing if the system does not tell.
[[nodiscard]] std::optional<std::vector<InterfaceAddress>> interface_addresses();

/// The addresses of all interfaces that are up, in numeric form, sorted. Addresses that mean something on this machine
/// or wire only (loopback, link-local) are left out. `interface`: only the addresses of this one; empty: of all.
/// Nothing if the system does not tell.
[[nodiscard]] std::optional<std::vector<std::string>> own_addresses(const std::string& interface);

}  // namespace gossamer::peer
