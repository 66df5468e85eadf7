#include "peer/links/tcp_connection.hpp"

// The C library's <netinet/tcp.h>, which Asio includes, has an older tcp_info, and the two cannot be had together.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string_view>

namespace gossamer::peer {

TcpBytes tcp_bytes(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return {.received = info.tcpi_bytes_received,
          .sent = info.tcpi_bytes_sent,
          .held_behind_loss = std::uint64_t{info.tcpi_sacked} * info.tcpi_snd_mss};
}

void use_bbr(int descriptor) {
  constexpr std::string_view name = "bbr";
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size());
}

}  // namespace gossamer::peer
