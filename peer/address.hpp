// The address where a node listens or is dialled: tcp://HOST:PORT. HOST is a name, an IPv4 address or an IPv6 address
// in brackets.
//
// Pure values, any thread.

#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace gossamer::peer {

/// Where a node listens unless it is told otherwise. IANA's registry gives this port to no service, and it is below the
/// range that systems use for outgoing connections. (Port 7946, which older configurations may name, is also the port
/// of Docker Swarm and Serf.)
inline constexpr std::uint16_t default_port = 26746;
inline constexpr const char* default_listen = "tcp://127.0.0.1:26746";

struct Address {
  std::string host;  ///< without brackets; "*" becomes 0.0.0.0
  std::uint16_t port = 0;

  friend bool operator==(const Address&, const Address&) = default;

  /// tcp://HOST:PORT, the form every table and message uses.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool is_ipv6() const { return host.find(':') != std::string::npos; }
  /// 127/8, ::1 or localhost: reachable from the same machine only.
  [[nodiscard]] bool is_loopback() const;
  /// 0.0.0.0 or ::, fit for listening only.
  [[nodiscard]] bool is_wildcard() const { return host == "0.0.0.0" || host == "::"; }
};

/// Port 0 ("any free one") is for listening only.
enum class AddressUse { listen, dial };

/// The scheme may be left out. An error names the text and says what is wrong with it.
[[nodiscard]] std::expected<Address, std::string> parse_address(std::string_view text, AddressUse use);

}  // namespace gossamer::peer
