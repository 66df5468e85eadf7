#include "sdk/c/average_client.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "sdk/layout/datagram.hpp"
#include "sdk/layout/names.hpp"
#include "sdk/layout/socket_path.hpp"

namespace gossamer::client {
namespace {

using layout::AverageCall;
using layout::AverageOpen;
using layout::AverageReply;
using layout::AverageStatus;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds connect_again{100};
/// The daemon says once a second whom a call waits for.
constexpr std::chrono::seconds silent_after{3};

int milliseconds_until(steady_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

/// Waits before the next try. False: `until` comes before that. The call waits in this case, too, because the program
/// may call again at once.
bool pause_before(steady_clock::time_point until) {
  const auto next = steady_clock::now() + connect_again;
  std::this_thread::sleep_until(std::min(next, until));
  return next < until;
}

bool is_programs_own(const AverageMemory& memory) {
  return AverageMemory::at(memory.values().data()).get() == &memory;
}

}  // namespace

Result<void> AverageClient::average(std::span<float> values, const gossamer_average_options& options,
                                    gossamer_average_info& info) {
  const Time until =
      options.timeout_ms < 0 ? Time::max() : steady_clock::now() + std::chrono::milliseconds(options.timeout_ms);
  if (count_ != 0 && values.size() != count_) {
    return fail(GOSSAMER_BAD_ARGUMENT, "'" + name_ + "' has averaged " + std::to_string(count_) +
                                           " values before, and now " + std::to_string(values.size()) +
                                           ": give each kind of average a name of its own");
  }
  if (count_ != 0 && options.layout != layout_)
    return fail(
        GOSSAMER_BAD_ARGUMENT,
        "'" + name_ + "' has averaged values of another layout before: give each kind of average a name of its own");
  const layout::AverageFormWord form{.eight_bits = options.codec == GOSSAMER_AVERAGE_Q8, .exact = options.exact};
  if (count_ != 0 && form.pack() != form_.pack())
    return fail(GOSSAMER_BAD_ARGUMENT,
                "'" + name_ + "' has averaged with another codec before: give this one a name of its own");
  count_ = values.size();
  form_ = form;
  layout_ = options.layout;
  if (auto chosen = choose_memory(values); !chosen) return chosen;
  const bool in_place = memory_ != nullptr && memory_->values().data() == values.data();
  while (true) {
    if (!socket_) {
      if (auto connected = connect(until); !connected) return connected;
    }
    if (!called_) call(values, options);
    AverageReply reply{};
    const auto received = receive(reply, until);
    if (!received) {
      tell_wait(info);
      return std::unexpected(received.error());
    }
    if (!*received) {
      if (in_place)
        return fail(GOSSAMER_INTERRUPTED,
                    "gossamerd has gone away and may have changed the values that it was to average in "
                    "place: put them there again and call again");
      if (!pause_before(until)) return fail(GOSSAMER_NO_DAEMON, "gossamerd has closed the connection");
      continue;
    }
    called_ = false;
    joined_ = joined_ || reply.joined != 0 || reply.status == static_cast<std::uint32_t>(AverageStatus::missed);
    if (reply.status == static_cast<std::uint32_t>(AverageStatus::refused)) {
      disconnect();
      return fail(GOSSAMER_REJECTED, reply.message);
    }
    if (reply.status != static_cast<std::uint32_t>(AverageStatus::done)) continue;  // missed: contributes again
    if (!in_place) std::ranges::copy(memory_->values(), values.begin());
    info.of = reply.of;
    info.differs = layout::AverageWaitWord::unpack(reply.waits).differs ? 1 : 0;
    info.round = reply.round;
    info.joined = std::exchange(joined_, false) ? 1 : 0;
    return {};
  }
}

/// Chooses the memory that the values are in, if the daemon can map it.
Result<void> AverageClient::choose_memory(std::span<float> values) {
  const auto here = AverageMemory::at(values.data());
  if (memory_ == nullptr && here != nullptr && here->values().size() == values.size()) memory_ = here;
  if (memory_ == nullptr || memory_ == here || !is_programs_own(*memory_)) return {};
  return fail(GOSSAMER_BAD_ARGUMENT,
              "'" + name_ +
                  "' averages the memory of gossamer_average_memory() that it was given first: give "
                  "it the same, or give this average a name of its own");
}

Result<void> AverageClient::connect(Time until) {
  disconnect();
  while (true) {
    auto socket = connect_once();
    if (socket) {
      socket_ = std::move(*socket);
      return begin();
    }
    if (!pause_before(until)) return std::unexpected(socket.error());
  }
}

Result<FileDescriptor> AverageClient::connect_once() const {
  const std::vector<std::string> clients =
      socket_path_.empty() ? layout::client_sockets() : std::vector<std::string>{socket_path_};
  std::string why =
      "no gossamerd is running on this machine, or its socket is elsewhere: start it, or set GOSSAMER_SOCKET";
  for (const std::string& path : clients) {
    const std::string average = std::filesystem::path(path).replace_filename(layout::average_socket_name);
    const auto address = layout::socket_address(average);
    if (!address) return fail(GOSSAMER_BAD_ARGUMENT, address.error());
    FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return fail_errno("could not create a socket");
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) return socket;
    why = std::string("no gossamerd answers at ") + average + ": " + std::strerror(errno);
  }
  return fail(GOSSAMER_NO_DAEMON, why);
}

Result<void> AverageClient::begin() {
  if (memory_ == nullptr) {
    auto made = AverageMemory::make(count_);
    if (!made) return std::unexpected(made.error());
    memory_ = std::move(*made);
  }
  if (auto renewed = memory_->renew(); !renewed) return renewed;
  AverageOpen open{.magic = layout::average_magic,
                   .version = layout::average_version,
                   .form = form_.pack(),
                   .elements = count_,
                   .job = {},
                   .name = {},
                   .layout = layout_,
                   .reserved = 0};
  copy_text(job_, open.job, sizeof open.job);
  copy_text(name_, open.name, sizeof open.name);
  int descriptor = memory_->show().get();
  iovec data{.iov_base = &open, .iov_len = sizeof open};
  // If the daemon refuses, its reply says why. receive() finds that reply, or the end of the connection.
  [[maybe_unused]] const ssize_t sent = send_datagram(socket_.get(), {&data, 1}, {&descriptor, 1});
  return {};
}

void AverageClient::call(std::span<const float> values, const gossamer_average_options& options) {
  if (values.data() != memory_->values().data()) std::ranges::copy(values, memory_->values().begin());
  const AverageCall call{.number = ++number_, .at_least = std::max(options.at_least, 1U), .grace_ms = options.grace_ms};
  [[maybe_unused]] const ssize_t sent = send(socket_.get(), &call, sizeof call, MSG_NOSIGNAL);
  called_ = true;
  heard_at_ = steady_clock::now();
}

/// False: the connection has ended.
Result<bool> AverageClient::receive(AverageReply& reply, Time until) {
  while (true) {
    pollfd wait{socket_.get(), POLLIN, 0};
    const int ready = poll(&wait, 1, until == Time::max() ? -1 : milliseconds_until(until));
    if (ready < 0 && errno != EINTR) return fail_errno("could not wait for the daemon");
    if (ready == 0) return fail(GOSSAMER_TIMEOUT, "the average is not there yet" + why_not());
    if (ready < 0) continue;
    const ssize_t size = recv(socket_.get(), &reply, sizeof reply, MSG_DONTWAIT);
    // If the daemon has closed the connection with our call unread, Linux reports a reset once, and only then returns
    // what the daemon had written before.
    if (size < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) continue;
    if (size != static_cast<ssize_t>(sizeof reply)) {
      disconnect();
      return false;
    }
    reply.message[sizeof reply.message - 1] = '\0';
    if (reply.status != static_cast<std::uint32_t>(AverageStatus::waiting)) {
      last_wait_ = {};
      return true;
    }
    heard_at_ = steady_clock::now();
    last_wait_ = reply;
  }
}

void AverageClient::tell_wait(gossamer_average_info& info) const {
  if (is_silent()) return;
  const auto waits = layout::AverageWaitWord::unpack(last_wait_.waits);
  info.waits_for = static_cast<std::uint32_t>(waits.what);
  info.members = last_wait_.of;
  info.differs = waits.differs ? 1 : 0;
}

bool AverageClient::is_silent() const {
  return steady_clock::now() - heard_at_ > silent_after;
}

std::string AverageClient::why_not() const {
  if (is_silent()) return ": gossamerd does not answer";
  return last_wait_.message[0] == '\0' ? "" : std::string(": ") + last_wait_.message;
}

/// Child processes may hold the socket, too, so closing it alone would not end the connection.
void AverageClient::disconnect() {
  if (socket_) shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
  if (memory_ == nullptr || !is_programs_own(*memory_)) {
    memory_.reset();
  } else {
    (void)memory_->renew();  // if that fails, the next connection tries it again
  }
  called_ = false;
  last_wait_ = {};
}

}  // namespace gossamer::client
