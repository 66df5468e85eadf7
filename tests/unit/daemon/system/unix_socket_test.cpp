// Listening sockets beside what is already there.

#include "daemon/system/unix_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer::daemon;
using Catch::Matchers::Contains;

TEST_CASE("a socket is for owner and group, and its file goes with it") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "s";
  {
    const auto socket = UnixSocket::listen(path, SOCK_STREAM);
    REQUIRE(socket);
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == 0660);
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a socket file is replaced only if nobody answers") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "s";
  {
    const gossamer::FileDescriptor dead(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    const auto address = gossamer::layout::socket_address(path.string());
    REQUIRE(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0);
  }
  REQUIRE(std::filesystem::exists(path));
  const auto socket = UnixSocket::listen(path, SOCK_SEQPACKET);
  REQUIRE(socket);
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const auto second = UnixSocket::listen(path, type);
    REQUIRE_FALSE(second);
    CHECK_THAT(second.error(), Contains("another program answers") && Contains("[node] socket_dir"));
  }
  CHECK(test::connect_to(path.string(), SOCK_SEQPACKET));
}

TEST_CASE("what is in the way is named, not removed") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "s";
  test::write_file(path, "precious");
  CHECK_THAT(UnixSocket::listen(path, SOCK_STREAM).error(), Contains("is not a socket"));
  CHECK(test::read_file(path) == "precious");
  CHECK_THAT(UnixSocket::listen(folder.path() / "none" / "s", SOCK_STREAM).error(), Contains("[node] socket_dir"));
  CHECK_THAT(UnixSocket::listen(folder.path() / std::string(120, 's'), SOCK_STREAM).error(),
             Contains("must have 1 to"));
}
