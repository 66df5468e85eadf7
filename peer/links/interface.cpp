#include "peer/links/interface.hpp"

#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace gossamer::peer {
namespace {

std::string interfaces_here() {
  const std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> all(::if_nameindex(), ::if_freenameindex);
  std::string text;
  for (const auto* each = all.get(); each != nullptr && each->if_index != 0; ++each) {
    if (!text.empty()) text += ", ";
    text += each->if_name;
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::expected<void, std::string> check_interface(const std::string& name) {
  if (name.empty()) return {};
  const std::string start = "network interface '" + name + "': ";
  if (name.size() >= IFNAMSIZ || ::if_nametoindex(name.c_str()) == 0) {
    return std::unexpected(start + "this machine has no such interface; it has " + interfaces_here());
  }
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::unexpected(start + "no socket to try it with: out of file descriptors?");
  const int error = hold_to_interface(descriptor, name);
  ::close(descriptor);
  if (error == 0) return {};
  if (error == EPERM) {
    return std::unexpected(start +
                           "before Linux 5.7 it takes the capability CAP_NET_RAW to hold connections to an interface; "
                           "listen at the interface's address instead");
  }
  return std::unexpected(start + "connections cannot be held to it (error " + std::to_string(error) + ")");
}

int hold_to_interface(int descriptor, const std::string& name) {
  if (name.empty()) return 0;
  const auto length = static_cast<socklen_t>(name.size());
  return ::setsockopt(descriptor, SOL_SOCKET, SO_BINDTODEVICE, name.data(), length) == 0 ? 0 : errno;
}

}  // namespace gossamer::peer
