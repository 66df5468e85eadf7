#include "peer/links/received_bytes.hpp"

// The C library's <netinet/tcp.h>, which Asio includes, has an older tcp_info, and the two cannot be had together.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace gossamer::peer {

std::uint64_t received_bytes(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_bytes_received : 0;
}

}  // namespace gossamer::peer
