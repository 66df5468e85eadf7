#include "peer/address.hpp"

#include <algorithm>
#include <asio/ip/address.hpp>
#include <charconv>

#include "peer/limits.hpp"

namespace gossamer::peer {
namespace {

constexpr std::string_view scheme = "tcp://";
constexpr std::size_t max_host_bytes = 253;

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

/// Text for a message: bounded and printable.
std::string quoted(std::string_view text) {
  std::string shown = "'";
  for (const char c : text.substr(0, 64))
    shown.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  return shown + (text.size() > 64 ? "…'" : "'");
}

}  // namespace

std::string Address::text() const {
  return std::string(scheme) + (is_ipv6() ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Address::is_loopback() const {
  if (host == "localhost") return true;
  asio::error_code error;
  const auto numeric = asio::ip::make_address(host, error);
  return !error && numeric.is_loopback();
}

std::expected<Address, std::string> parse_address(std::string_view text, AddressUse use) {
  const auto wrong = [&](const std::string& why) {
    return std::unexpected("address " + quoted(text) + ": " + why + "; tcp://HOST:PORT is expected");
  };
  if (text.size() > max_address_bytes) return wrong("too long");
  std::string_view rest = text;
  if (rest.starts_with(scheme)) rest.remove_prefix(scheme.size());
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos)
    return wrong("there is no port, which is " + std::to_string(default_port) + " unless the node is told otherwise");

  Address address;
  const std::string_view port = rest.substr(colon + 1);
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()) {
    return wrong("the port is not a number up to 65535");
  }
  if (address.port == 0 && use == AddressUse::dial) return wrong("port 0 cannot be dialled");

  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    asio::error_code error;
    (void)asio::ip::make_address_v6(std::string(host), error);
    if (error) return wrong("what is in brackets is not an IPv6 address");
    address.host = host;
  } else if (host == "*") {
    address.host = "0.0.0.0";
  } else {
    if (host.empty() || host.size() > max_host_bytes) return wrong("the host is empty or too long");
    if (!std::ranges::all_of(host, is_host_character)) return wrong("the host has a character that no host name has");
    address.host = host;
  }
  if (address.is_wildcard() && use == AddressUse::dial) return wrong("it stands for every interface, not for a node");
  return address;
}

}  // namespace gossamer::peer
