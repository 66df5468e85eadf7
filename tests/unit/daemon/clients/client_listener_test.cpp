// The client socket: attaching, waking, leaving, and everything hostile that a client can send.

#include "daemon/clients/client_listener.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "daemon/clients/client_handshake.hpp"
#include "tests/unit/daemon/clients/listening.hpp"

using namespace gossamer;
using namespace gossamer::daemon;
using Catch::Matchers::Contains;
using layout::AttachStatus;
using test::Client;
using test::Listening;
using test::status;
using namespace std::chrono_literals;

TEST_CASE("a client attaches, wakes the daemon, and leaves") {
  Listening daemon;
  const std::size_t descriptors = test::open_descriptors();
  {
    Client client(daemon);
    client.ask(layout::attach_resume);
    const layout::AttachReply reply = daemon.reply(client.socket);
    CHECK(status(reply) == AttachStatus::accepted);
    CHECK(reply.node_id[0] == 42);
    CHECK(reply.message[0] == 0);
    REQUIRE(daemon.events.sessions.size() == 1);
    const ClientSession& session = *daemon.events.sessions[0];
    CHECK(session.pid() == ::getpid());
    CHECK(session.caller().user == ::getuid());
    CHECK(session.resume());
    CHECK(session.memory().job() == "digits");
    CHECK(daemon.listener->sessions() == 1);
    CHECK(daemon.listener->pending() == 0);
    CHECK(daemon.listener->memory_bytes() == layout::most_bytes(client.memory.plan, 0));
    for (int i = 1; i <= 3; ++i) {
      client.ring();
      CHECK(test::run_until(daemon.loop, [&] { return daemon.events.wakes == i; }));
    }
    CHECK(daemon.events.last_woken == session.number());
  }
  CHECK(test::run_until(daemon.loop, [&] { return daemon.events.detaches == 1; }));
  CHECK(daemon.listener->sessions() == 0);
  CHECK(daemon.listener->memory_bytes() == 0);
  CHECK(test::open_descriptors() == descriptors);
}

TEST_CASE("the memory of a session lasts while somebody holds it") {
  Listening daemon;
  std::shared_ptr<ClientSession> held;
  {
    Client client(daemon);
    client.ask();
    CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
    held = daemon.events.sessions.at(0);
    client.memory.buffer(0, 0)[0] = 5;
  }
  CHECK(test::run_until(daemon.loop, [&] { return daemon.events.detaches == 1; }));
  CHECK(held->memory().buffer(0, 0)[0] == 5);
  held->close();  // closing an ended session does nothing
}

TEST_CASE("the runs of one process count together how long they have served fragments") {
  Listening daemon;
  Client first(daemon);
  first.ask();
  CHECK(status(daemon.reply(first.socket)) == AttachStatus::accepted);
  daemon.events.sessions.at(0)->process_serving_ns() = 5;
  Client second(daemon);
  second.ask();
  CHECK(status(daemon.reply(second.socket)) == AttachStatus::accepted);
  CHECK(daemon.events.sessions.at(1)->process_serving_ns() == 5);
}

TEST_CASE("the daemon ends a session") {
  Listening daemon;
  Client client(daemon);
  client.ask();
  CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
  const std::shared_ptr<ClientSession> session = daemon.events.sessions.at(0);
  session->close();
  session->close();
  CHECK(daemon.events.detaches == 0);
  CHECK(daemon.closed(client.socket));
  CHECK(daemon.events.detaches == 1);

  Client other(daemon);
  other.ask();
  CHECK(status(daemon.reply(other.socket)) == AttachStatus::accepted);
  daemon.listener = nullptr;
  CHECK(daemon.events.detaches == 1);  // a daemon that stops has lost no client
  CHECK(daemon.closed(other.socket));
  CHECK_FALSE(std::filesystem::exists(daemon.path));
  daemon.events.sessions.at(0)->close();  // closing an ended session does nothing
}

TEST_CASE("a client keeps for the node what it was given, and what it makes up itself is not taken") {
  Listening daemon;
  Client client(daemon);
  auto mapped = ClientMemory::map(client.memory.fd.get(), client.memory.plan.total_bytes, ~std::uint64_t{0});
  REQUIRE(mapped);
  const NodeMemory::Shape shape = NodeMemory::shape_of(*mapped);
  const auto ask_with = [&](int kept) {
    client.socket = daemon.connect();
    layout::AttachRequest request = test::attach_request(client.memory.plan.total_bytes);
    request.flags = layout::attach_resume | layout::attach_kept;
    test::send_datagram(client.socket.get(), &request, sizeof request,
                        {client.memory.fd.get(), client.wake.get(), kept});
    CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
    return daemon.events.sessions.back()->kept();
  };
  const auto made = NodeMemory::make(shape);
  REQUIRE(made);
  (*made)->store_copy(1, {.buffer = 1, .commits = 7, .number = 9});
  const std::shared_ptr<NodeMemory> back = ask_with((*made)->to_keep());
  REQUIRE(back);
  CHECK(back->copy(1)->number == 9);
  back->store_copy(1, {.buffer = 0, .commits = 8, .number = 10});  // both objects map the same memory
  CHECK((*made)->copy(1)->commits == 8);

  SECTION("whoever keeps it can only read") {
    CHECK(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, (*made)->to_keep(), 0) == MAP_FAILED);
    CHECK(::write((*made)->to_keep(), "x", 1) < 0);
  }
  SECTION("something else") {
    const FileDescriptor folder(::open("/tmp", O_RDONLY | O_CLOEXEC));
    FileDescriptor forged(::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(forged.get(), static_cast<off_t>((*made)->bytes().size())) == 0);
    REQUIRE(::pwrite(forged.get(), (*made)->bytes().data(), 4096, 0) == 4096);
    NodeMemory::Shape other = shape;
    other.job.name_hash ^= 1;
    const auto of_other = NodeMemory::make(other);
    REQUIRE(of_other);
    for (const int kept :
         {folder.get(), client.wake.get(), client.memory.fd.get(), forged.get(), (*of_other)->to_keep()})
      CHECK(ask_with(kept) == nullptr);
    REQUIRE(::fcntl(forged.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    CHECK(ask_with(forged.get()) == nullptr);  // anybody can open it
  }
  SECTION("with the reply comes what the session says") {
    daemon.events.to_keep = *made;
    client.socket = daemon.connect();
    client.ask();
    test::Listening& turned = daemon;
    layout::AttachReply reply{};
    iovec data{&reply, sizeof reply};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    REQUIRE(test::run_until(turned.loop, [&] {
      return ::recvmsg(client.socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == sizeof reply;
    }));
    REQUIRE(CMSG_FIRSTHDR(&message) != nullptr);
    int kept = -1;
    std::memcpy(&kept, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof kept);
    CHECK(inode_of(kept) == inode_of((*made)->to_keep()));
    const std::shared_ptr<NodeMemory> again = NodeMemory::take_back(FileDescriptor(kept), shape);
    REQUIRE(again);
    CHECK(again->copy(1)->number == 10);
  }
}

TEST_CASE("a job is not begun anew while processes that have its model may be about to come back") {
  const test::TemporaryFolder folder;
  const pid_t here = ::getpid();
  {
    AttachedClients before(folder.path());
    CHECK_FALSE(before.expects_others("digits", 1));
    before.came(1, "digits", here);
    before.came(2, "letters", here);
    before.came(3, "digits", 1 << 30);  // no process has that number
    before.went(2);
  }
  AttachedClients now(folder.path());
  CHECK(now.expects_others("digits", 1));
  CHECK_FALSE(now.expects_others("digits", here));
  CHECK_FALSE(now.expects_others("letters", 1));
  now.came(7, "digits", here);
  CHECK_FALSE(now.expects_others("digits", 1));
  test::write_file(folder.path() / "attached", "x y z\n-3 digits\n" + std::string(10'000, 'a'));
  CHECK_FALSE(AttachedClients(folder.path()).expects_others("digits", 1));
}

TEST_CASE("a wake-up flag turned to blocking by the client does not block the daemon") {
  Listening daemon;
  Client client(daemon);
  client.ask();
  CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
  REQUIRE(::fcntl(client.wake.get(), F_SETFL, 0) == 0);
  client.ring();
  std::uint64_t count = 0;
  // The client takes it back, so the daemon finds nothing.
  REQUIRE(::read(client.wake.get(), &count, sizeof count) == sizeof count);
  daemon.loop.restart();
  daemon.loop.run_for(50ms);
  client.ring();
  CHECK(test::run_until(daemon.loop, [&] { return daemon.events.wakes >= 1; }));
}

namespace {

/// Makes preadv2() fail on the calling thread from now on. False if that is not possible.
bool forbid_preadv2() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_preadv2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("a client is heard where the system cannot read without waiting") {
  std::optional<std::array<Rung, 3>> heard;
  std::thread([&heard] {
    const FileDescriptor bell(eventfd(1, 0));
    if (!forbid_preadv2()) return;
    const Rung first = drain_eventfd(bell.get());
    const Rung second = drain_eventfd(bell.get());
    eventfd_write(bell.get(), 2);
    heard = {first, second, drain_eventfd(bell.get())};
  }).join();
  REQUIRE(heard);
  CHECK(*heard == std::array{Rung::yes, Rung::no, Rung::yes});
}

TEST_CASE("a malformed request gets an answer that says why, and nothing leaks") {
  Listening daemon;
  test::TestMemory memory;
  memory.seal();
  test::TestMemory unsealed;
  test::TestMemory lying;
  lying.seal();
  lying.header().elements = 1;
  const FileDescriptor wake(::eventfd(0, EFD_CLOEXEC));
  const int fd = memory.fd.get();
  const layout::AttachRequest good = test::attach_request(memory.plan.total_bytes);
  const auto changed = [&](auto change) {
    layout::AttachRequest request = good;
    change(request);
    return request;
  };
  const auto bytes_of = [](const layout::AttachRequest& request, std::size_t size = sizeof(layout::AttachRequest)) {
    std::string bytes(size, 'x');
    std::memcpy(bytes.data(), &request, std::min(size, sizeof request));
    return bytes;
  };
  const struct {
    const char* what;
    std::string datagram;
    std::vector<int> descriptors;
    AttachStatus status;
    const char* message;
  } cases[] = {
      {"garbage", std::string(32, 'g'), {fd, wake.get()}, AttachStatus::version_differs, "mark is wrong"},
      {"one byte", "g", {}, AttachStatus::version_differs, "this one has 1"},
      {"one byte and descriptors", "g", {fd, wake.get()}, AttachStatus::version_differs, "this one has 1"},
      {"too short", bytes_of(good, 31), {fd, wake.get()}, AttachStatus::version_differs, "this one has 31"},
      {"too long", bytes_of(good, 33), {fd, wake.get()}, AttachStatus::version_differs, "this one has more"},
      {"far too long", std::string(60'000, 'g'), {}, AttachStatus::version_differs, "this one has more"},
      {"magic",
       bytes_of(changed([](auto& r) { r.magic = 0; })),
       {fd, wake.get()},
       AttachStatus::version_differs,
       "mark is wrong"},
      {"version",
       bytes_of(changed([](auto& r) { r.version = 9; })),
       {fd, wake.get()},
       AttachStatus::version_differs,
       "version 9"},
      {"flags",
       bytes_of(changed([](auto& r) { r.flags = 12; })),
       {fd, wake.get()},
       AttachStatus::version_differs,
       "flags 0xc"},
      {"nothing kept",
       bytes_of(changed([](auto& r) { r.flags = layout::attach_kept; })),
       {fd, wake.get()},
       AttachStatus::bad_layout,
       "3 descriptors, a memfd, an eventfd, what it has kept; 2 came"},
      {"no descriptors", bytes_of(good), {}, AttachStatus::bad_layout, "2 descriptors"},
      {"one descriptor", bytes_of(good), {fd}, AttachStatus::bad_layout, "1 came"},
      {"three descriptors", bytes_of(good), {fd, wake.get(), wake.get()}, AttachStatus::bad_layout, "3 came"},
      {"many descriptors", bytes_of(good), std::vector<int>(200, fd), AttachStatus::bad_layout, "some were lost"},
      {"swapped", bytes_of(good), {wake.get(), fd}, AttachStatus::bad_layout, "not an eventfd"},
      {"twice the memory", bytes_of(good), {fd, fd}, AttachStatus::bad_layout, "not an eventfd"},
      {"twice the eventfd", bytes_of(good), {wake.get(), wake.get()}, AttachStatus::bad_layout, "not a memfd"},
      {"size",
       bytes_of(changed([](auto& r) { r.memory_bytes += 1; })),
       {fd, wake.get()},
       AttachStatus::bad_layout,
       "the request says"},
      {"unsealed", bytes_of(good), {unsealed.fd.get(), wake.get()}, AttachStatus::bad_layout, "not sealed"},
      {"lying header", bytes_of(good), {lying.fd.get(), wake.get()}, AttachStatus::bad_layout, "total_bytes"},
  };
  const std::size_t descriptors = test::open_descriptors();
  for (const auto& [what, datagram, sent, expected, message] : cases) {
    CAPTURE(what);
    const FileDescriptor socket = daemon.connect();
    test::send_datagram(socket.get(), datagram.data(), datagram.size(), sent);
    const layout::AttachReply reply = daemon.reply(socket);
    CHECK(status(reply) == expected);
    CHECK_THAT(std::string(reply.message), Contains(message));
    CHECK(daemon.closed(socket));
  }
  CHECK(test::open_descriptors() == descriptors);
  CHECK(daemon.events.sessions.empty());
  CHECK(daemon.listener->refused() == std::size(cases));
  CHECK(daemon.listener->pending() == 0);
  CHECK_THAT(daemon.log.text.str(), Contains("a client was refused: the memfd is not sealed"));
}

TEST_CASE("random datagrams with random descriptors are refused or taken, and nothing leaks") {
  Listening daemon;
  std::mt19937_64 random(11);
  test::TestMemory memory;
  memory.seal();
  const FileDescriptor wake(::eventfd(0, EFD_CLOEXEC));
  const std::size_t descriptors = test::open_descriptors();
  constexpr int rounds = 500;
  for (int round = 0; round < rounds; ++round) {
    layout::AttachRequest request = test::attach_request(memory.plan.total_bytes);
    std::string datagram(reinterpret_cast<const char*>(&request), sizeof request);
    for (std::size_t n = random() % 3; n > 0; --n)
      datagram[random() % datagram.size()] = static_cast<char>(random());
    if (random() % 4 == 0) datagram.resize(1 + random() % 100, 'z');
    const int candidates[] = {memory.fd.get(), wake.get(), STDIN_FILENO};
    std::vector<int> sent;
    for (std::size_t n = random() % 4; n > 0; --n)
      sent.push_back(candidates[random() % 3]);
    const FileDescriptor socket = daemon.connect();
    test::send_datagram(socket.get(), datagram.data(), datagram.size(), sent);
    (void)daemon.reply(socket);
  }
  CHECK(test::run_until(daemon.loop, [&] { return daemon.listener->sessions() + daemon.listener->pending() == 0; }));
  CHECK(test::open_descriptors() == descriptors);
  Client client(daemon);
  client.ask();
  CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
}

TEST_CASE("a client that sends more after attaching is detached") {
  Listening daemon;
  const std::size_t descriptors = test::open_descriptors();
  {
    Client client(daemon);
    client.ask();
    CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
    test::send_datagram(client.socket.get(), "more", 4, {client.memory.fd.get()});
    CHECK(test::run_until(daemon.loop, [&] { return daemon.events.detaches == 1; }));
    CHECK(daemon.closed(client.socket));
  }
  CHECK(test::open_descriptors() == descriptors);
}

TEST_CASE("a client that says nothing is dropped after the time-out") {
  Listening daemon({.attach_timeout = 30ms});
  const FileDescriptor silent = daemon.connect();
  const layout::AttachReply reply = daemon.reply(silent);
  CHECK_THAT(std::string(reply.message), Contains("in time"));
  CHECK(daemon.closed(silent));
  // A client that attached in time is not closed.
  Client client(daemon);
  client.ask();
  CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
  daemon.loop.restart();
  daemon.loop.run_for(100ms);
  CHECK(daemon.events.detaches == 0);
}

TEST_CASE("pending connections are bounded") {
  Listening daemon;
  std::vector<FileDescriptor> silent;
  while (silent.size() < max_pending_attaches) {
    silent.push_back(daemon.connect());
    CHECK(test::run_until(daemon.loop, [&] { return daemon.listener->pending() == silent.size(); }));
  }
  const FileDescriptor one_more = daemon.connect();
  CHECK(status(daemon.reply(one_more)) == AttachStatus::limit_reached);
  CHECK(daemon.closed(one_more));
  silent.clear();
  CHECK(test::run_until(daemon.loop, [&] { return daemon.listener->pending() == 0; }));
}

TEST_CASE("limits of clients and memory are kept, and given back") {
  const std::uint64_t size_bytes = layout::most_bytes(test::TestMemory().plan, 0);
  SECTION("clients") {
    Listening daemon({.limits = {.clients = 1}});
    auto first = std::make_unique<Client>(daemon);
    first->ask();
    CHECK(status(daemon.reply(first->socket)) == AttachStatus::accepted);
    Client second(daemon);
    second.ask();
    const layout::AttachReply reply = daemon.reply(second.socket);
    CHECK(status(reply) == AttachStatus::limit_reached);
    CHECK_THAT(std::string(reply.message), Contains("[limits] clients"));
    first.reset();
    CHECK(test::run_until(daemon.loop, [&] { return daemon.events.detaches == 1; }));
    Client third(daemon);
    third.ask();
    CHECK(status(daemon.reply(third.socket)) == AttachStatus::accepted);
  }
  SECTION("memory") {
    Listening daemon({.limits = {.memory_bytes = size_bytes + size_bytes / 2}});
    Client first(daemon);
    first.ask();
    CHECK(status(daemon.reply(first.socket)) == AttachStatus::accepted);
    Client second(daemon);
    second.ask();
    const layout::AttachReply reply = daemon.reply(second.socket);
    CHECK(status(reply) == AttachStatus::limit_reached);
    CHECK_THAT(std::string(reply.message), Contains("memory_mib"));
  }
  SECTION("of one user; said before it is reached, and not again and again") {
    Listening daemon({.limits = {.clients_per_user = 5}});
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 5; ++i) {
      CHECK(daemon.listener->limits_near().empty() == (i < 4));
      clients.push_back(std::make_unique<Client>(daemon));
      clients.back()->ask();
      CHECK(status(daemon.reply(clients.back()->socket)) == AttachStatus::accepted);
    }
    const std::string user = std::to_string(::getuid());
    CHECK(daemon.listener->limits_near() == "clients_per_user, user " + user + ": 5 of 5");
    for (int i = 0; i < 3; ++i) {
      Client more(daemon);
      more.ask();
      const layout::AttachReply reply = daemon.reply(more.socket);
      CHECK(status(reply) == AttachStatus::limit_reached);
      CHECK_THAT(std::string(reply.message), Contains("5 clients of user " + user) && Contains("clients_per_user"));
    }
    CHECK(daemon.listener->refused() == 3);
    const std::string log = daemon.log.text.str();
    CHECK_THAT(log, Contains("clients will soon be refused") && Contains("user " + user + ": 4 of 5"));
    const std::string refusal = "a client was refused";
    const std::size_t first = log.find(refusal);
    CHECK(first != std::string::npos);
    CHECK(log.find(refusal, first + 1) == std::string::npos);
  }
}

TEST_CASE("what the node refuses is passed on, and a stopping daemon says so") {
  Listening daemon;
  daemon.events.refusal = AttachRefusal{AttachStatus::job_busy, std::string(300, 'b')};
  Client client(daemon);
  client.ask();
  const layout::AttachReply reply = daemon.reply(client.socket);
  CHECK(status(reply) == AttachStatus::job_busy);
  CHECK(std::string(reply.message) == std::string(223, 'b'));
  CHECK(daemon.events.detaches == 0);

  daemon.events.refusal.reset();
  daemon.listener->refuse_new();
  Client late(daemon);
  late.ask();
  CHECK(status(daemon.reply(late.socket)) == AttachStatus::stopping);
}

namespace {

/// While it lives this process gets no further descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    FileDescriptor next(::eventfd(0, EFD_CLOEXEC));
    rlimit tight = before_;
    tight.rlim_cur = static_cast<rlim_t>(next.get());
    next.reset();
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("a client that comes when there are no descriptors hears so, and is taken when it comes again") {
  Listening daemon;
  Client client(daemon);
  {
    const NoDescriptors tight;
    const layout::AttachReply reply = daemon.reply(client.socket);
    CHECK(status(reply) == AttachStatus::limit_reached);  // the client may try again later
    CHECK_THAT(reply.message, Contains("file descriptors") && Contains("LimitNOFILE="));
    CHECK_THAT(daemon.log.text.str(), Contains("cannot accept a client") && Contains("LimitNOFILE="));
  }
  CHECK(daemon.closed(client.socket));
  client.socket = daemon.connect();
  client.ask();
  CHECK(status(daemon.reply(client.socket)) == AttachStatus::accepted);
}

TEST_CASE("a client whose own descriptors do not fit hears that, and not that its model is wrong") {
  Listening daemon;
  Client client(daemon);
  REQUIRE(test::run_until(daemon.loop, [&] { return daemon.listener->pending() == 1; }));
  client.ask();
  const NoDescriptors tight;
  const layout::AttachReply reply = daemon.reply(client.socket);
  CHECK(status(reply) == AttachStatus::limit_reached);
  CHECK_THAT(reply.message, Contains("file descriptors") && Contains("LimitNOFILE="));
}

TEST_CASE("a socket whose file is removed or replaced is made again") {
  const bool told = GENERATE(false, true);  // told by SIGHUP; otherwise it looks
  CAPTURE(told);
  Listening daemon({.socket_look_period = told ? 1h : 10ms});
  Client attached(daemon);
  attached.ask();
  REQUIRE(status(daemon.reply(attached.socket)) == AttachStatus::accepted);
  REQUIRE(::unlink(daemon.path.c_str()) == 0);
  std::ofstream(daemon.path) << "in its place";
  if (told) daemon.listener->look_at_socket();
  CHECK(test::run_until(daemon.loop, [&] { return daemon.log.text.str().find("not a socket") != std::string::npos; }));
  REQUIRE(::unlink(daemon.path.c_str()) == 0);
  if (told) daemon.listener->look_at_socket();
  CHECK(test::run_until(daemon.loop, [&] { return std::filesystem::is_socket(daemon.path); }));
  CHECK_THAT(daemon.log.text.str(), Contains("listening there again"));
  Client late(daemon);
  late.ask();
  CHECK(status(daemon.reply(late.socket)) == AttachStatus::accepted);
  CHECK(daemon.listener->sessions() == 2);
  attached.ring();
  CHECK(test::run_until(daemon.loop, [&] { return daemon.events.wakes == 1; }));
  daemon.listener.reset();
  CHECK_FALSE(std::filesystem::exists(daemon.path));
}
