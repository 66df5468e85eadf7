// Memory that systemd keeps while the daemon is dead: what the daemon asks of systemd, and what a new daemon does with
// the memory. The test's own socket takes systemd's place, and a child process gets the memory as descriptor 3.

#include "daemon/clients/kept_memory.hpp"

#include <sys/wait.h>

#include <cstdlib>
#include <functional>

#include "tests/unit/catch.hpp"
#include "tests/unit/daemon/support.hpp"
#include "tests/unit/daemon/test_client.hpp"

using namespace gossamer::daemon;
using namespace std::chrono_literals;

namespace {

/// systemd's end of NOTIFY_SOCKET.
struct Systemd {
  Systemd() : socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const std::string path = (folder.path() / "notify").string();
    const auto address = gossamer::layout::socket_address(path);
    REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Systemd() { ::unsetenv("NOTIFY_SOCKET"); }

  /// Returns the next message. `inode` is that of the descriptor that came with it, or 0.
  std::string receive(std::uint64_t& inode) const {
    char text[256];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec data{text, sizeof text};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    inode = 0;
    const ssize_t size = ::recvmsg(socket.get(), &message, MSG_DONTWAIT);
    if (size < 0) return "";
    if (const cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr && part->cmsg_type == SCM_RIGHTS) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part), sizeof descriptor);
      inode = inode_of(descriptor);
      ::close(descriptor);
    }
    return {text, static_cast<std::size_t>(size)};
  }
  [[nodiscard]] std::string receive() const {
    std::uint64_t inode = 0;
    return receive(inode);
  }

  test::TemporaryFolder folder;
  gossamer::FileDescriptor socket;
};

struct Daemon {
  explicit Daemon(std::chrono::milliseconds patience = KeptMemory::default_patience)
      : kept(loop, manager, log.logger, patience) {}
  asio::io_context loop;
  ServiceManager manager{loop};
  test::TestLog log;
  KeptMemory kept;
};

/// Starts a daemon in a child process, with this descriptor kept under this name. Returns whether `check` holds there.
bool holds_after_restart(int memfd, const std::string& name, std::chrono::milliseconds patience,
                         const std::function<bool(Daemon&)>& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int copy = ::fcntl(memfd, F_DUPFD, 100);  // descriptor 3 may be in use
    ::dup2(copy, 3);
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", "1", 1);
    ::setenv("LISTEN_FDNAMES", name.c_str(), 1);
    Daemon daemon(patience);
    ::_exit(check(daemon) && ::getenv("LISTEN_FDS") == nullptr ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("memory is kept while its client is attached") {
  const Systemd systemd;
  Daemon daemon;
  CHECK(daemon.kept.awaited() == 0);
  const test::TestMemory memory;
  const std::string name = "memory-" + std::to_string(inode_of(memory.fd.get()));
  daemon.kept.keep(memory.fd.get());
  std::uint64_t inode = 0;
  CHECK(systemd.receive(inode) == "FDSTORE=1\nFDNAME=" + name);
  CHECK(inode == inode_of(memory.fd.get()));
  daemon.kept.forget(inode);
  CHECK(systemd.receive() == "FDSTOREREMOVE=1\nFDNAME=" + name);
  CHECK(systemd.receive().empty());
}

TEST_CASE("a restarted daemon awaits the clients of the last one, and lets go of those that do not come") {
  const Systemd systemd;
  test::TestMemory memory;
  memory.seal();
  const std::uint64_t inode = inode_of(memory.fd.get());
  const std::string name = "memory-" + std::to_string(inode);

  CHECK(holds_after_restart(memory.fd.get(), name, 20s, [&](Daemon& daemon) {
    const bool awaited = daemon.kept.awaited() == 1;
    daemon.kept.keep(memory.fd.get());  // its client is back: systemd holds it already
    return awaited && daemon.kept.awaited() == 0;
  }));
  CHECK(systemd.receive().empty());

  CHECK(holds_after_restart(memory.fd.get(), name, 1ms, [&](Daemon& daemon) {
    const bool awaited = daemon.kept.awaited() == 1;
    return awaited && test::run_until(daemon.loop, [&] { return daemon.kept.awaited() == 0; }) &&
           daemon.log.text.str().find("job digits: the process that trained it") != std::string::npos;
  }));
  CHECK(systemd.receive() == "FDSTOREREMOVE=1\nFDNAME=" + name);
}

TEST_CASE("what systemd gives back is believed no more than a client") {
  const Systemd systemd;
  test::TestMemory memory;
  const std::string name = "memory-" + std::to_string(inode_of(memory.fd.get()));
  const auto nobody_awaited = [](Daemon& daemon) { return daemon.kept.awaited() == 0; };
  CHECK(holds_after_restart(memory.fd.get(), name, 20s, nobody_awaited));  // the memory is not sealed
  CHECK(systemd.receive() == "FDSTOREREMOVE=1\nFDNAME=" + name);
  memory.seal();
  CHECK(holds_after_restart(memory.fd.get(), "memory-1", 20s, nobody_awaited));
  CHECK(systemd.receive() == "FDSTOREREMOVE=1\nFDNAME=memory-1");
  memory.header().layout_hash += 1;
  CHECK(holds_after_restart(memory.fd.get(), name, 20s, nobody_awaited));
}
