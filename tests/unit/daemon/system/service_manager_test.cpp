// What systemd receives. The test's own socket takes systemd's place.

#include "daemon/system/service_manager.hpp"

#include <sys/socket.h>

#include <cstdlib>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

TEST_CASE("systemd is told what the daemon does, and that its loop turns") {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "notify").string();
  const gossamer::FileDescriptor systemd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto address = gossamer::layout::socket_address(path);
  REQUIRE(::bind(systemd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  ::setenv("WATCHDOG_USEC", "10000", 1);
  const auto received = [&] {
    char text[256];
    const ssize_t got = ::recv(systemd.get(), text, sizeof text, MSG_DONTWAIT);
    return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : std::string();
  };

  asio::io_context loop;
  ServiceManager manager(loop);
  ::unsetenv("WATCHDOG_USEC");
  CHECK(received().empty());
  manager.ready();
  CHECK(received() == "READY=1");
  CHECK(received() == "WATCHDOG=1");
  for (int i = 0; i < 3; ++i)
    CHECK(test::run_until(loop, [&] { return received() == "WATCHDOG=1"; }));
  manager.status("2 neighbours");
  CHECK(received() == "STATUS=2 neighbours");
  manager.reloading();
  CHECK_THAT(received(), Contains("RELOADING=1\nMONOTONIC_USEC="));
  manager.stopping();
  CHECK(received() == "STOPPING=1");
  ::unsetenv("NOTIFY_SOCKET");
  manager.stopping();
  CHECK(received().empty());
}
