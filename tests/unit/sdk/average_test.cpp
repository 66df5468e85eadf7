// Tests the client's side of averages against a daemon of the test's own, right or wrong (sdk/layout/average.hpp).

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <future>
#include <gossamer.hpp>
#include <thread>

#include "catch.hpp"
#include "contract_daemon.hpp"
#include "sdk/layout/average.hpp"

using namespace gossamer;
using namespace gossamer::layout;
using gossamer::test::patience_ms;
using gossamer::test::readable;

namespace {

struct Unmap {
  std::size_t bytes = 0;
  void operator()(float* begin) const { munmap(begin, bytes); }
};

/// One connection, as the daemon sees it.
struct Connection {
  FileDescriptor socket;
  AverageOpen open{};
  std::unique_ptr<float[], Unmap> values;

  AverageCall next_call() const {
    AverageCall call{};
    REQUIRE(readable(socket.get()));
    REQUIRE(recv(socket.get(), &call, sizeof call, 0) == sizeof call);
    return call;
  }
  void reply(const AverageCall& call, AverageStatus status, const char* message = "", std::uint32_t of = 2,
             AverageWaitWord waits = {}) const {
    AverageReply reply{.number = call.number,
                       .round = 9,
                       .status = static_cast<std::uint32_t>(status),
                       .of = of,
                       .joined = 0,
                       .waits = waits.pack(),
                       .message = {}};
    std::strncpy(reply.message, message, sizeof reply.message - 1);
    REQUIRE(send(socket.get(), &reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply);
  }
};

class AverageDaemon {
 public:
  AverageDaemon() : path_((folder_.path() / average_socket_name).string()) { listen(); }

  void listen() {
    listening_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    unlink(path_.c_str());
    REQUIRE(bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listening_.get(), 4) == 0);
  }
  void stop() {
    listening_.reset();
    unlink(path_.c_str());
  }

  Connection accept() {
    REQUIRE(readable(listening_.get()));
    Connection connection{
        .socket = FileDescriptor(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)), .open = {}, .values = {}};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec data{&connection.open, sizeof connection.open};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    REQUIRE(readable(connection.socket.get()));
    REQUIRE(recvmsg(connection.socket.get(), &message, MSG_CMSG_CLOEXEC) == sizeof connection.open);
    int memory = -1;
    std::memcpy(&memory, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof memory);
    const FileDescriptor held(memory);
    CHECK((fcntl(memory, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW));
    const std::size_t bytes = connection.open.elements * sizeof(float);
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    REQUIRE(mapped != MAP_FAILED);
    connection.values = {static_cast<float*>(mapped), Unmap{bytes}};
    return connection;
  }

  [[nodiscard]] int listening() const { return listening_.get(); }

  Run run() {
    const Tensor tensors[] = {param("w", model_)};
    return {{.job = "j", .socket_path = (folder_.path() / "client.sock").string()}, tensors};
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
  FileDescriptor listening_;
  std::vector<float> model_ = std::vector<float>(8);
};

gossamer_status status_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.status();
  }
  return GOSSAMER_OK;
}

/// Calls average() on another thread. This thread acts as the daemon.
std::future<gossamer_average_info> asked(Run& run, std::span<float> values, const AverageOptions& options = {}) {
  return std::async(std::launch::async, [&run, values, options] { return run.average(values, options); });
}
std::future<gossamer_status> status_asked(Run& run, std::span<float> values, const AverageOptions& options = {}) {
  return std::async(std::launch::async,
                    [&run, values, options] { return status_of([&] { run.average(values, options); }); });
}

}  // namespace

TEST_CASE("an average is asked for as the contract says, and comes back") {
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values{1, 2, 3};
  auto average = asked(run, values, {.name = "n", .at_least = 3});
  const Connection connection = daemon.accept();
  CHECK(connection.open.magic == average_magic);
  CHECK(connection.open.version == average_version);
  CHECK(connection.open.elements == 3);
  CHECK(std::string(connection.open.job) == "j");
  CHECK(std::string(connection.open.name) == "n");
  const AverageCall call = connection.next_call();
  CHECK((call.number == 1 && call.at_least == 3 && call.grace_ms == 0));
  CHECK(connection.values[2] == 3);
  connection.values[2] = 8;
  connection.reply(call, AverageStatus::waiting, "for others");
  connection.reply(call, AverageStatus::done);
  const gossamer_average_info info = average.get();
  CHECK((info.of == 2 && info.joined == 0 && info.round == 9));
  CHECK(values == std::vector<float>{1, 2, 8});
}

TEST_CASE("whoever missed a round contributes again, and is told that it joined") {
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values{1};
  auto average = asked(run, values);
  const Connection connection = daemon.accept();
  connection.reply(connection.next_call(), AverageStatus::missed);
  const AverageCall again = connection.next_call();
  CHECK(again.number == 2);
  connection.reply(again, AverageStatus::done);
  CHECK(average.get().joined == 1);
}

TEST_CASE("a time-out says who is waited for, and the call can go on") {
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values{1};
  auto late = status_asked(run, values, {.timeout = std::chrono::milliseconds(500)});
  const Connection connection = daemon.accept();
  const AverageCall call = connection.next_call();
  connection.reply(call, AverageStatus::waiting, "for node 12");
  CHECK(late.get() == GOSSAMER_TIMEOUT);
  CHECK(run.last_error().find("for node 12") != std::string::npos);
  std::vector<float> others{1, 2};
  CHECK(status_of([&] { run.average(others); }) == GOSSAMER_BAD_ARGUMENT);
  auto average = asked(run, values);
  connection.reply(call, AverageStatus::done);
  CHECK(average.get().of == 2);
}

TEST_CASE("a daemon that goes away in the middle is asked again when it is back") {
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values{4};
  auto average = asked(run, values);
  {
    const Connection connection = daemon.accept();
    const AverageCall call = connection.next_call();
    connection.values[0] = 77;  // the daemon dies in the middle of its work
    (void)call;
    daemon.stop();
  }
  daemon.listen();
  const Connection connection = daemon.accept();
  const AverageCall call = connection.next_call();
  CHECK(connection.values[0] == 4);
  connection.reply(call, AverageStatus::done);
  CHECK(average.get().of == 2);
}

TEST_CASE("memory that the daemon can map is averaged where it is") {
  AverageDaemon daemon;
  Run run = daemon.run();
  const AverageArray values(2);
  CHECK(values.get()[1] == 0);
  values.get()[0] = 4;
  auto average = asked(run, values.get());
  Connection connection = daemon.accept();
  AverageCall call = connection.next_call();
  connection.values[1] = 8;
  CHECK((values.get()[0] == 4 && values.get()[1] == 8));  // both ends map the same memory
  connection.reply(call, AverageStatus::done);
  CHECK(average.get().of == 2);

  SECTION("all calls under the name are given it") {
    std::vector<float> others{1, 2};
    CHECK(status_of([&] { run.average(others); }) == GOSSAMER_BAD_ARGUMENT);
    CHECK(run.last_error().find("a name of its own") != std::string::npos);
    const AverageArray more(2);
    CHECK(status_of([&] { run.average(more.get()); }) == GOSSAMER_BAD_ARGUMENT);
  }
  SECTION("a part of it is copied") {
    auto part = asked(run, values.get().first(1), {.name = "part"});
    const Connection other = daemon.accept();
    const AverageCall part_call = other.next_call();
    other.values[0] = 5;
    CHECK(values.get()[0] == 4);
    other.reply(part_call, AverageStatus::done);
    CHECK(part.get().of == 2);
    CHECK(values.get()[0] == 5);
  }
  SECTION("a daemon that was left reads on what it was given") {
    run.leave_average();
    values.get()[0] = 6;
    CHECK(connection.values[0] == 4);
    auto again = asked(run, values.get());
    const Connection next = daemon.accept();
    CHECK((next.values[0] == 6 && next.values[1] == 8));
    next.reply(next.next_call(), AverageStatus::done);
    CHECK(again.get().of == 2);
  }
  SECTION("if a daemon goes away in the middle, the values are to be given again") {
    auto interrupted = status_asked(run, values.get());
    call = connection.next_call();
    connection.values[0] = 77;  // the call ends in the middle of the daemon's work
    connection = {};
    CHECK(interrupted.get() == GOSSAMER_INTERRUPTED);
    values.get()[0] = 4;
    auto again = asked(run, values.get());
    connection = daemon.accept();
    CHECK(connection.values[0] == 4);
    connection.reply(connection.next_call(), AverageStatus::done);
    CHECK(again.get().of == 2);
  }
}

TEST_CASE("memory that is averaged outlives its program's pointer, and is not made without need") {
  AverageDaemon daemon;
  Run run = daemon.run();
  auto values = std::make_unique<AverageArray>(1);
  auto average = asked(run, values->get());
  const Connection connection = daemon.accept();
  connection.reply(connection.next_call(), AverageStatus::done);
  CHECK(average.get().of == 2);
  values.reset();
  std::vector<float> others{3};
  average = asked(run, others);
  const AverageCall call = connection.next_call();
  CHECK(connection.values[0] == 3);
  connection.values[0] = 5;
  connection.reply(call, AverageStatus::done);
  CHECK(average.get().of == 2);
  CHECK(others[0] == 5);
  CHECK(gossamer_average_memory(0) == nullptr);
  CHECK(gossamer_average_memory(std::numeric_limits<std::size_t>::max()) == nullptr);
  gossamer_average_memory_free(nullptr);
}

TEST_CASE("whoever leaves closes the connection, and a refusal is told") {
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values{4};
  CHECK(status_of([&] { run.average(values, {.timeout = std::chrono::milliseconds(0)}); }) == GOSSAMER_TIMEOUT);
  const Connection first = daemon.accept();
  (void)first.next_call();
  run.leave_average();
  AverageReply nothing;
  REQUIRE(readable(first.socket.get()));
  CHECK(recv(first.socket.get(), &nothing, sizeof nothing, 0) == 0);
  auto refused = status_asked(run, values);
  const Connection second = daemon.accept();
  second.reply(second.next_call(), AverageStatus::refused, "too many");
  CHECK(refused.get() == GOSSAMER_REJECTED);
  CHECK(run.last_error() == "too many");
}

TEST_CASE("a call whose time is up says what it waits for: to people, and to programs") {
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values{4};
  const gossamer_average_options options{.size = sizeof options,
                                         .name = nullptr,
                                         .at_least = 3,
                                         .grace_ms = 0,
                                         .timeout_ms = 100,
                                         .codec = 0,
                                         .exact = 0,
                                         .layout = 0,
                                         .reserved = 0};
  const auto call = [&](std::size_t size) {
    gossamer_average_info info{};
    info.size = size;
    info.reserved = 77;  // not the library's, where the program knows nothing of it
    const gossamer_status status = gossamer_average(run.handle(), values.data(), 1, &options, &info);
    CHECK(status == GOSSAMER_TIMEOUT);
    CHECK(info.size == size);
    return info;
  };
  CHECK(call(sizeof(gossamer_average_info)).waits_for == GOSSAMER_WAIT_NOT_TOLD);
  const Connection connection = daemon.accept();
  const AverageCall made = connection.next_call();
  connection.reply(made, AverageStatus::waiting, "there are 2 of 3", 2,
                   {.what = AverageWait::members, .differs = true});
  const gossamer_average_info info = call(sizeof(gossamer_average_info));
  CHECK(info.waits_for == GOSSAMER_WAIT_MEMBERS);
  CHECK(info.members == 2);
  CHECK(info.differs == 1);
  CHECK(info.of == 0);
  CHECK(info.reserved == 0);
  CHECK(run.last_error().find("there are 2 of 3") != std::string::npos);
  const gossamer_average_info old = call(offsetof(gossamer_average_info, waits_for));
  CHECK(old.waits_for == 0);
  CHECK(old.reserved == 77);
  connection.reply(made, AverageStatus::waiting, "what a later daemon says", 2, AverageWaitWord::unpack(0xff));
  CHECK(call(sizeof(gossamer_average_info)).waits_for == GOSSAMER_WAIT_NOT_TOLD);
  connection.values[0] = 5;
  connection.reply(made, AverageStatus::done);
  gossamer_average_info done{};
  done.size = sizeof done;
  CHECK(gossamer_average(run.handle(), values.data(), 1, &options, &done) == GOSSAMER_OK);
  CHECK(done.of == 2);
  CHECK(done.waits_for == 0);
  done.waits_for = 3;
  CHECK(gossamer_average(run.handle(), values.data(), 2, &options, &done) == GOSSAMER_BAD_ARGUMENT);
  CHECK((done.of == 0 && done.waits_for == 0 && done.size == sizeof done));  // nothing of an earlier call
}

TEST_CASE("a refusal that comes before the call is told, and nothing is asked for again and again") {
  const bool unread = GENERATE(false, true);
  AverageDaemon daemon;
  Run run = daemon.run();
  std::vector<float> values(1 << 20);
  auto refused = status_asked(run, values);
  {
    const Connection connection = daemon.accept();
    if (unread) REQUIRE(readable(connection.socket.get()));
    connection.reply({}, AverageStatus::refused, "no memory");
  }
  CHECK(refused.get() == GOSSAMER_REJECTED);
  CHECK(run.last_error() == "no memory");
  const auto begin = std::chrono::steady_clock::now();
  auto late = status_asked(run, values, {.timeout = std::chrono::milliseconds(400)});
  int connections = 0;
  while (late.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    if (!readable(daemon.listening(), 10)) continue;
    (void)daemon.accept();
    ++connections;
  }
  CHECK(late.get() != GOSSAMER_OK);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(connections < 20);
}

TEST_CASE("what cannot be averaged is refused at once") {
  AverageDaemon daemon;
  Run run = daemon.run();
  daemon.stop();
  std::vector<float> values{4};
  CHECK(status_of([&] { run.average({}); }) == GOSSAMER_BAD_ARGUMENT);
  CHECK(status_of([&] { run.average(values, {.name = "a b"}); }) == GOSSAMER_BAD_ARGUMENT);
  const auto begun = std::chrono::steady_clock::now();
  CHECK(status_of([&] { run.average(values, {.timeout = std::chrono::milliseconds(200)}); }) == GOSSAMER_NO_DAEMON);
  CHECK(std::chrono::steady_clock::now() - begun >=
        std::chrono::milliseconds(200));  // a program that calls again must not spin
  CHECK(run.last_error().find("no gossamerd answers at") != std::string::npos);
  CHECK(gossamer_average(run.handle(), nullptr, 3, nullptr, nullptr) == GOSSAMER_BAD_ARGUMENT);
  gossamer_average_info info{};
  CHECK(gossamer_average(run.handle(), values.data(), 1, nullptr, &info) == GOSSAMER_BAD_ARGUMENT);
}
