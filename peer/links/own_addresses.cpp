#include "peer/links/own_addresses.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <asio/ip/tcp.hpp>
#include <cstring>
#include <memory>
#include <set>

namespace gossamer::peer {
namespace {

constexpr std::uint32_t link_local_ipv4 = 0xa9fe0000;  // 169.254.0.0/16, RFC 3927
constexpr std::uint32_t link_local_ipv4_mask = 0xffff0000;

bool is_link_local(const asio::ip::address& address) {
  return address.is_v4() ? (address.to_v4().to_uint() & link_local_ipv4_mask) == link_local_ipv4
                         : address.to_v6().is_link_local();
}

}  // namespace

std::optional<std::vector<InterfaceAddress>> interface_addresses() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* item = found; item != nullptr; item = item->ifa_next) {
    if (item->ifa_addr == nullptr || (item->ifa_flags & IFF_UP) == 0) continue;
    const int family = item->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    asio::ip::tcp::endpoint endpoint;
    endpoint.resize(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::memcpy(endpoint.data(), item->ifa_addr, endpoint.size());
    addresses.push_back({item->ifa_name, (item->ifa_flags & IFF_LOOPBACK) != 0, endpoint.address()});
  }
  return addresses;
}

std::optional<std::vector<std::string>> own_addresses(const std::string& interface) {
  const auto all = interface_addresses();
  if (!all) return std::nullopt;
  std::set<std::string> own;
  for (const auto& [name, loopback, address] : *all) {
    const bool counts = !loopback && (interface.empty() || interface == name);
    if (counts && !is_link_local(address)) own.insert(address.to_string());
  }
  return std::vector<std::string>(own.begin(), own.end());
}

}  // namespace gossamer::peer
