#include "peer/links/own_addresses.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <memory>

namespace gossamer::peer {
namespace {

constexpr std::uint32_t link_local_ipv4 = 0xa9fe0000;  // 169.254.0.0/16, RFC 3927
constexpr std::uint32_t link_local_ipv4_mask = 0xffff0000;

/// The numeric form; empty if addresses of this kind do not count.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const in_addr& ipv4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    if ((ntohl(ipv4.s_addr) & link_local_ipv4_mask) == link_local_ipv4) return {};
    return inet_ntop(AF_INET, &ipv4, text.data(), text.size());
  }
  if (address->sa_family == AF_INET6) {
    const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&ipv6)) return {};
    return inet_ntop(AF_INET6, &ipv6, text.data(), text.size());
  }
  return {};
}

}  // namespace

std::optional<std::vector<std::string>> own_addresses(const std::string& interface) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* item = found; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0 || (item->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (!interface.empty() && interface != item->ifa_name) continue;
    if (std::string text = text_of(item->ifa_addr); !text.empty()) addresses.push_back(std::move(text));
  }
  std::ranges::sort(addresses);
  const auto repeated = std::ranges::unique(addresses);
  addresses.erase(repeated.begin(), repeated.end());
  return addresses;
}

}  // namespace gossamer::peer
