#include "sdk/c/replica_parts.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "sdk/layout/datagram.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t hello_magic = 0x7374726170'2d67;  // "g-parts"
/// The version of the messages below and of parts_memory.hpp. Libraries with different versions of them cannot work
/// together.
constexpr std::uint32_t hello_version = 1;
constexpr std::chrono::seconds meeting_limit{60};
constexpr std::chrono::milliseconds meet_again{5};
constexpr std::chrono::milliseconds look_again_after{100};
/// After a meeting has failed, part 0 accepts parts for this time, to tell those that have not come yet.
constexpr std::chrono::seconds refusal_time{2};
/// A part makes a turn this many steps after it has seen it at the latest, even if its own count of steps has not
/// reached the turn's. While nobody trains, it makes the turn after this many calls without samples.
constexpr std::uint64_t most_steps_later = 2;
constexpr std::uint32_t most_idle_calls = 3;

/// The first message of a part to part 0.
struct PartHello {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t part;
  std::uint32_t parts;
  std::uint32_t reserved;
  std::uint64_t layout_hash;
  char job[layout::max_job_bytes + 1];
};

/// The messages after the first. Part 0 sends one with the descriptors, the part answers when it has published, and
/// part 0 sends another when the replica is whole. Either may say instead what is wrong, which ends the meeting.
struct Say {
  std::uint32_t status;  ///< a gossamer_status
  char message[252];     ///< zero-terminated
};

/// How part 0 stores AttachmentStatus for the others.
struct ToldAttachment {
  std::int64_t lost_at_ns;
  std::uint64_t attachments;
  std::uint8_t attached, rejected, rejected_for_good, nobody_answers;
  std::array<std::uint8_t, 16> node_id;
  char message[512];
};

template <class T>
[[nodiscard]] T from_slot(const std::atomic<std::uint64_t>& word, std::byte* slots) {
  T value{};
  const std::vector<std::byte> bytes = layout::load_slot(word, slots);
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <class T>
void to_slot(std::atomic<std::uint64_t>& word, std::byte* slots, const T& value) {
  layout::store_slot(word, slots, std::as_bytes(std::span(&value, 1)));
}

/// An address in the abstract namespace, which needs no folder. It is visible in one network namespace only.
[[nodiscard]] std::pair<sockaddr_un, socklen_t> address_of(const std::string& replica) {
  const std::string name = "gossamer-parts-" + std::to_string(geteuid()) + "-" + replica;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

[[nodiscard]] Result<FileDescriptor> new_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno("could not create a socket");
  return socket;
}

/// The milliseconds until the deadline, for poll().
[[nodiscard]] int until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

[[nodiscard]] bool readable(int descriptor, Clock::time_point deadline) {
  pollfd wait{descriptor, POLLIN, 0};
  int ready = -1;
  do {
    ready = poll(&wait, 1, until(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

/// Messages are shorter than any socket's buffer, so sending does not wait.
template <class Message>
[[nodiscard]] Result<void> send_message(int socket, const Message& said, std::span<const int> descriptors = {}) {
  iovec data{.iov_base = const_cast<Message*>(&said), .iov_len = sizeof said};
  if (send_datagram(socket, {&data, 1}, descriptors) != static_cast<ssize_t>(sizeof said))
    return fail_errno("another part of the replica cannot be reached");
  return {};
}

/// Receives a message of exactly this size, with exactly as many descriptors as `descriptors` has room for.
template <class Message>
[[nodiscard]] Result<Message> receive_message(int socket, Clock::time_point deadline,
                                              std::span<FileDescriptor> descriptors = {}) {
  if (!readable(socket, deadline)) return fail(GOSSAMER_TIMEOUT, "another part of the replica does not answer");
  std::array<std::byte, sizeof(Message) + 1> bytes{};
  ReceivedDatagram datagram = receive_datagram(socket, bytes);
  const ssize_t received = datagram.size;
  const std::size_t came = datagram.descriptors.size();
  std::ranges::move(std::span(datagram.descriptors).first(std::min(came, descriptors.size())), descriptors.begin());
  Message said{};
  std::memcpy(&said, bytes.data(), sizeof said);
  if (received == 0) return fail(GOSSAMER_SYSTEM_ERROR, "another part of the replica has ended");
  if (received < 0) return fail_errno("another part of the replica cannot be heard");
  if constexpr (std::is_same_v<Message, Say>) {
    said.message[sizeof said.message - 1] = '\0';
    if (received == sizeof said && said.status != GOSSAMER_OK)
      return fail(static_cast<gossamer_status>(said.status), said.message);
  }
  if (received != sizeof said || came != descriptors.size())
    return fail(GOSSAMER_REJECTED, "another part of the replica has a library of another version");
  return said;
}

[[nodiscard]] Say failure(const ClientError& error) {
  Say said{.status = static_cast<std::uint32_t>(error.status), .message = {}};
  copy_text(error.message, said.message, sizeof said.message);
  return said;
}

[[nodiscard]] std::optional<ucred> credentials(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return peer;
}

[[nodiscard]] bool of_this_user(int socket) {
  const auto peer = credentials(socket);
  return peer && (peer->uid == geteuid() || peer->uid == 0);
}

}  // namespace

Result<void> ReplicaParts::check(const gossamer_options& options) {
  if (options.parts > max_parts || options.part >= options.parts) {
    return fail(GOSSAMER_BAD_ARGUMENT, "part " + std::to_string(options.part) + " of " + std::to_string(options.parts) +
                                           ": parts is at most " + std::to_string(max_parts) +
                                           ", and part an index below it");
  }
  if (options.replica == nullptr || !layout::is_job_name(options.replica)) {
    return fail(
        GOSSAMER_BAD_ARGUMENT,
        std::string("a replica in parts needs a name in `replica`, the same in its processes and in no others: ") +
            layout::job_name_form);
  }
  if (options.device != GOSSAMER_HOST || options.memory == GOSSAMER_MEMORY_LEAN) {
    return fail(GOSSAMER_UNSUPPORTED,
                "a replica in parts has its tensors in host memory and is not lean: leave memory at auto, and give the "
                "run the values of a GPU with gossamer_set_transfer()");
  }
  if ((options.flags & GOSSAMER_KEEPS) != 0) return fail(GOSSAMER_UNSUPPORTED, "a replica in parts cannot be a keeper");
  return {};
}

ReplicaParts::ReplicaParts(const gossamer_options& options, const ClientReplica& replica)
    : parts_(options.parts),
      part_(options.part),
      replica_(options.replica),
      job_(options.job),
      layout_hash_(replica.layout_hash()),
      plan_(parts_plan(replica.elements(), replica.fragment_count())),
      deadline_(Clock::now() + meeting_limit),
      held_(replica.fragment_count()),
      made_(replica.fragment_count()) {}

ReplicaParts::~ReplicaParts() {
  if (base_ == nullptr) return;  // a child: the connections are the parent's
  // A child of this process may have the sockets, too, so closing them is not enough.
  for (const Other& other : others_)
    shutdown(other.socket.get(), SHUT_RDWR);
  munmap(base_, plan_.total_bytes);
}

// --- meeting

Result<std::unique_ptr<ReplicaParts>> ReplicaParts::found(const gossamer_options& options, ClientReplica& replica) {
  std::unique_ptr<ReplicaParts> parts(new ReplicaParts(options, replica));
  if (auto made = parts->make_memory(); !made) return std::unexpected(made.error());
  parts->state().clock.store(options.initial_clock_samples, std::memory_order_relaxed);
  parts->take(replica);
  if (auto listening = parts->listen(); !listening) return std::unexpected(listening.error());
  return parts;
}

Result<void> ReplicaParts::make_memory() {
  FileDescriptor file(memfd_create("gossamer-parts", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return fail_errno("could not create the memory of the replica's parts");
  if (ftruncate(file.get(), static_cast<off_t>(plan_.total_bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("could not size the memory of the replica's parts");
  return map_memory(std::move(file));
}

Result<void> ReplicaParts::map_memory(FileDescriptor file) {
  struct stat info;
  if (fstat(file.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != plan_.total_bytes)
    return fail(GOSSAMER_REJECTED, "the memory of the replica's parts has another size: their libraries differ");
  void* base = mmap(nullptr, plan_.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return fail_errno("could not map the memory of the replica's parts");
  madvise(base, plan_.total_bytes, MADV_DONTFORK);
  base_ = static_cast<std::byte*>(base);
  file_ = std::move(file);
  return {};
}

void ReplicaParts::take(ClientReplica& replica) {
  replica.take(taken());
  for (std::uint32_t fragment = 0; fragment < replica.fragment_count(); ++fragment) {
    held_[fragment] = !replica.pieces(fragment).empty();
    if (held_[fragment]) turn(fragment).holders.fetch_add(1, std::memory_order_relaxed);
  }
}

Result<void> ReplicaParts::listen() {
  auto socket = new_socket();
  if (!socket) return std::unexpected(socket.error());
  const auto [address, bytes] = address_of(replica_);
  if (bind(socket->get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    if (errno != EADDRINUSE) return fail_errno("could not wait for the other parts of the replica");
    return fail(GOSSAMER_BAD_ARGUMENT, "another process of this machine is part 0 of a replica called '" + replica_ +
                                           "': give each replica a name of its own");
  }
  if (::listen(socket->get(), static_cast<int>(max_parts)) != 0)
    return fail_errno("could not wait for the other parts of the replica");
  listener_ = std::move(*socket);
  return {};
}

Result<void> ReplicaParts::gather(const ClientReplica& replica, int memory, int doorbell) {
  auto met = meet(replica, memory, doorbell);
  for (const Other& other : others_) {
    const auto told = send_message(other.socket.get(), met ? Say{} : failure(met.error()));
    if (met && !told) met = fail(GOSSAMER_SYSTEM_ERROR, called(other.part) + " has ended while the parts met");
  }
  if (!met) refuse_the_rest(met.error());
  listener_.reset();
  file_.reset();
  return met;
}

/// Tells the parts that are waiting to be accepted, or come within refusal_time, what is wrong. Otherwise they would
/// wait for a minute.
void ReplicaParts::refuse_the_rest(const ClientError& error) {
  const Clock::time_point end = std::min(deadline_, Clock::now() + refusal_time);
  for (auto told = others_.size() + 1; told < parts_ && readable(listener_.get(), end); ++told) {
    const FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket && of_this_user(socket.get())) (void)send_message(socket.get(), failure(error));
  }
}

Result<void> ReplicaParts::look_for_gone() const {
  epoll_event event{};
  if (epoll_wait(watch_.get(), &event, 1, 0) <= 0) return {};
  return fail(GOSSAMER_SYSTEM_ERROR, called(event.data.u32) + " has ended while the parts met");
}

Result<void> ReplicaParts::meet(const ClientReplica& replica, int memory, int doorbell) {
  watch_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!watch_) return fail_errno("could not watch the other parts of the replica");
  while (others_.size() + 1 < parts_) {
    std::array<pollfd, 2> waits = {pollfd{listener_.get(), POLLIN, 0}, pollfd{watch_.get(), POLLIN, 0}};
    if (poll(waits.data(), waits.size(), until(deadline_)) < 0) continue;  // a signal
    if (auto all_there = look_for_gone(); !all_there) return all_there;
    if (waits[0].revents == 0) {
      return fail(GOSSAMER_TIMEOUT, "the replica '" + replica_ + "' is not whole after " +
                                        std::to_string(meeting_limit.count()) + " s: " + absent() +
                                        " of it did not come. Each process opens the run with its own `part`");
    }
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket || !of_this_user(socket.get())) continue;
    if (auto accepted = accept_one(std::move(socket), memory, doorbell); !accepted) return accepted;
  }
  if (auto all_there = look_for_gone(); !all_there) return all_there;
  return check_cover(replica);
}

/// If the part does not fit, it is told why, and so are all others.
Result<void> ReplicaParts::accept_one(FileDescriptor socket, int memory, int doorbell) {
  auto hello = receive_message<PartHello>(socket.get(), deadline_);
  if (!hello) return std::unexpected(hello.error());
  Result<void> fits;
  const auto same = [&](const Other& other) { return other.part == hello->part; };
  if (hello->magic != hello_magic || hello->version != hello_version) {
    fits =
        fail(GOSSAMER_REJECTED, "the parts of the replica '" + replica_ + "' use different versions of this library");
  } else if (hello->parts != parts_ || hello->part == 0 || hello->part >= parts_ ||
             std::ranges::any_of(others_, same)) {
    fits = fail(GOSSAMER_BAD_ARGUMENT, "a process is part " + std::to_string(hello->part) + " of " +
                                           std::to_string(hello->parts) + " of the replica '" + replica_ +
                                           "', and there is one already, or part 0 says that there are " +
                                           std::to_string(parts_));
  } else if (hello->job[sizeof hello->job - 1] != '\0' || job_ != hello->job) {
    fits =
        fail(GOSSAMER_BAD_ARGUMENT, called(hello->part) + " has another job than part 0, which trains '" + job_ + "'");
  } else if (hello->layout_hash != layout_hash_) {
    fits = fail(GOSSAMER_BAD_ARGUMENT,
                called(hello->part) + " has another model than part 0: each lists all tensors of the whole model, in " +
                    "the same order, with their whole shapes, and the slice that it holds");
  }
  if (!fits) {
    (void)send_message(socket.get(), failure(fits.error()));
    return fits;
  }
  const std::array<int, 3> descriptors = {memory, file_.get(), doorbell};
  if (auto sent = send_message(socket.get(), Say{}, descriptors); !sent) return sent;
  // The parts take their elements one after the other. Elements that several parts hold are taken by the first of them.
  if (auto published = receive_message<Say>(socket.get(), deadline_); !published) {
    const ClientError& error = published.error();
    const bool its_own = error.status == GOSSAMER_BAD_ARGUMENT;
    return fail(error.status, its_own ? error.message : called(hello->part) + " has ended while the parts met");
  }
  return keep({.part = hello->part, .socket = std::move(socket), .process = {}});
}

Result<void> ReplicaParts::check_cover(const ClientReplica& replica) const {
  for (std::uint64_t element = 0; element < replica.elements(); element += 64) {
    std::uint64_t lacking = ~taken()[element / 64];
    if (replica.elements() - element < 64) lacking &= (std::uint64_t{1} << (replica.elements() - element)) - 1;
    if (lacking == 0) continue;
    return fail(GOSSAMER_BAD_ARGUMENT,
                "no part of the replica '" + replica_ + "' holds tensor " +
                    replica.place_of(element + static_cast<std::uint64_t>(std::countr_zero(lacking))) +
                    ": the slices of all parts must cover the whole model");
  }
  return {};
}

std::string ReplicaParts::called(std::uint32_t part) const {
  return "part " + std::to_string(part) + " of " + std::to_string(parts_);
}

std::string ReplicaParts::absent() const {
  std::string names;
  for (std::uint32_t part = 1; part < parts_; ++part) {
    if (std::ranges::any_of(others_, [part](const Other& other) { return other.part == part; })) continue;
    names += (names.empty() ? "part " : ", ") + std::to_string(part);
  }
  return names;
}

/// Watches the connection, and also the process, because its children may hold the connection open.
Result<void> ReplicaParts::keep(Other other) {
  const auto peer = credentials(other.socket.get());
  if (peer) other.process = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer->pid, 0)));
  for (const FileDescriptor* watched : {&other.socket, &other.process}) {
    epoll_event event{.events = EPOLLIN, .data = {.u32 = other.part}};
    if (*watched && epoll_ctl(watch_.get(), EPOLL_CTL_ADD, watched->get(), &event) != 0)
      return fail_errno("could not watch the other parts of the replica");
  }
  others_.push_back(std::move(other));
  return {};
}

Result<ReplicaParts::Joined> ReplicaParts::join(const gossamer_options& options, ClientReplica& replica) {
  std::unique_ptr<ReplicaParts> parts(new ReplicaParts(options, replica));
  auto socket = new_socket();
  if (!socket) return std::unexpected(socket.error());
  const auto [address, bytes] = address_of(parts->replica_);
  // The socket must not block: another user may have taken the address, and never accept anybody.
  fcntl(socket->get(), F_SETFL, O_NONBLOCK);
  while (connect(socket->get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    if (errno != ECONNREFUSED && errno != ENOENT && errno != EINTR && errno != EAGAIN)
      return fail_errno("could not reach part 0 of the replica");
    if (Clock::now() >= parts->deadline_) {
      return fail(GOSSAMER_TIMEOUT, "part 0 of the replica '" + parts->replica_ + "' did not come within " +
                                        std::to_string(meeting_limit.count()) +
                                        " s: its process opens the run with the same `replica`");
    }
    std::this_thread::sleep_for(meet_again);
  }
  if (!of_this_user(socket->get()))
    return fail(GOSSAMER_REJECTED, "part 0 of the replica is a process of another user");
  PartHello hello{.magic = hello_magic,
                  .version = hello_version,
                  .part = parts->part_,
                  .parts = parts->parts_,
                  .reserved = 0,
                  .layout_hash = parts->layout_hash_,
                  .job = {}};
  copy_text(parts->job_, hello.job, sizeof hello.job);
  if (auto sent = send_message(socket->get(), hello); !sent) return std::unexpected(sent.error());
  std::array<FileDescriptor, 3> descriptors;
  if (auto said = receive_message<Say>(socket->get(), parts->deadline_, descriptors); !said)
    return std::unexpected(said.error());
  if (auto mapped = parts->map_memory(std::move(descriptors[1])); !mapped) return std::unexpected(mapped.error());
  parts->file_.reset();
  if (parts->clock() != options.initial_clock_samples) {
    const auto wrong =
        fail(GOSSAMER_BAD_ARGUMENT, parts->called(parts->part_) +
                                        " has another initial_clock_samples than part 0: load the same " +
                                        "checkpoint in all of them");
    (void)send_message(socket->get(), failure(wrong.error()));
    return wrong;
  }
  parts->take(replica);
  parts->watch_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!parts->watch_) return fail_errno("could not watch the other parts of the replica");
  if (auto kept = parts->keep({.part = 0, .socket = std::move(*socket), .process = {}}); !kept)
    return std::unexpected(kept.error());
  return Joined{std::move(parts), std::move(descriptors[0]), std::move(descriptors[2])};
}

Result<void> ReplicaParts::all_met() {
  const int socket = others_.front().socket.get();
  if (auto sent = send_message(socket, Say{}); !sent) return sent;
  // Part 0 waits for the others for the same time, and may have begun to wait later.
  if (auto whole = receive_message<Say>(socket, Clock::now() + 2 * meeting_limit); !whole)
    return std::unexpected(whole.error());
  return {};
}

// --- turns

void ReplicaParts::begin_turn(std::uint32_t fragment, const layout::Word& marked, std::uint64_t at_step) {
  FragmentTurn& next = turn(fragment);
  next.word.store(marked.pack(), std::memory_order_relaxed);
  next.at_step.store(at_step, std::memory_order_relaxed);
  next.done.store(0, std::memory_order_relaxed);
  next.number.fetch_add(1, std::memory_order_release);
  state().turns.fetch_add(1, std::memory_order_release);
  begun_.push_back(fragment);
}

void ReplicaParts::make_turns(std::uint64_t step, bool waits,
                              const std::function<bool(std::uint32_t, layout::Word)>& pass) {
  const bool trained = std::exchange(last_step_, step) != step;
  const std::uint32_t turns = state().turns.load(std::memory_order_acquire);
  if (turns != seen_turns_) {
    for (std::uint32_t fragment = 0; fragment < made_.size(); ++fragment) {
      const std::uint32_t number = turn(fragment).number.load(std::memory_order_acquire);
      if (number == made_[fragment]) continue;
      made_[fragment] = number;
      if (held_[fragment]) to_make_.push_back({.fragment = fragment, .step = step});
    }
    seen_turns_ = turns;
  }
  std::erase_if(to_make_, [&](Seen& seen) {
    const FragmentTurn& present = turn(seen.fragment);
    seen.idle = trained ? 0 : seen.idle + 1;
    const std::uint64_t at = std::min(present.at_step.load(std::memory_order_relaxed), seen.step + most_steps_later);
    if (!waits && step < at && seen.idle < most_idle_calls) return false;
    return pass(seen.fragment, layout::Word::unpack(present.word.load(std::memory_order_relaxed)));
  });
}

bool ReplicaParts::is_last(std::uint32_t fragment) {
  FragmentTurn& present = turn(fragment);
  return present.done.fetch_add(1, std::memory_order_acq_rel) + 1 == present.holders.load(std::memory_order_relaxed);
}

bool ReplicaParts::quiet() {
  std::erase_if(begun_, [this](std::uint32_t fragment) {
    const FragmentTurn& present = turn(fragment);
    return present.done.load(std::memory_order_acquire) == present.holders.load(std::memory_order_relaxed);
  });
  return begun_.empty();
}

// --- what the parts know together

bool ReplicaParts::all_finish() const {
  return std::ranges::all_of(std::span(state().finishing).first(parts_),
                             [](const auto& finishing) { return finishing.load(std::memory_order_acquire); });
}

void ReplicaParts::tell_attachment(const AttachmentStatus& status) {
  if (status == told_) return;
  told_ = status;
  ToldAttachment told{.lost_at_ns = std::chrono::nanoseconds(status.lost_at.time_since_epoch()).count(),
                      .attachments = status.attachments,
                      .attached = status.attached,
                      .rejected = status.rejected,
                      .rejected_for_good = status.rejected_for_good,
                      .nobody_answers = status.nobody_answers,
                      .node_id = status.node_id,
                      .message = {}};
  copy_text(status.message, told.message, sizeof told.message);
  to_slot(state().attachment, base_ + plan_.slots_offset, told);
}

AttachmentStatus ReplicaParts::attachment() const {
  const auto told = from_slot<ToldAttachment>(state().attachment, base_ + plan_.slots_offset);
  return {.attached = told.attached != 0,
          .attachments = told.attachments,
          .rejected = told.rejected != 0,
          .rejected_for_good = told.rejected_for_good != 0,
          .node_id = told.node_id,
          .message = told.message,
          .nobody_answers = told.nobody_answers != 0,
          .lost_at = Clock::time_point(std::chrono::nanoseconds(told.lost_at_ns))};
}

void ReplicaParts::tell_finish(const PartsFinish& finish) {
  to_slot(state().finish, base_ + plan_.slots_offset + 2 * layout::slot_bytes, finish);
}

PartsFinish ReplicaParts::finish() const {
  return from_slot<PartsFinish>(state().finish, base_ + plan_.slots_offset + 2 * layout::slot_bytes);
}

std::string ReplicaParts::gone(bool urgent) {
  const Clock::time_point now = Clock::now();
  const bool known = state().gone.load(std::memory_order_acquire) != 0;
  if (!known && !urgent && now - looked_ < look_again_after) return {};
  looked_ = now;
  return missing();
}

std::string ReplicaParts::missing() const {
  std::uint32_t first = state().gone.load(std::memory_order_acquire);
  epoll_event event{};
  if (first == 0 && epoll_wait(watch_.get(), &event, 1, 0) > 0 &&
      state().gone.compare_exchange_strong(first, event.data.u32 + 1))
    first = event.data.u32 + 1;
  if (first == 0) return {};
  return called(first - 1) +
         " of this replica has gone, so the replica is out of gossip: start all its processes again";
}

std::optional<bool> ReplicaParts::verdict(std::uint32_t finish) const {
  bool finite = true;
  for (const auto& one : std::span(state().verdicts).first(parts_)) {
    const std::uint64_t said = one.load(std::memory_order_acquire);
    if (said / 2 < finish) return std::nullopt;
    finite = finite && said % 2 != 0;
  }
  return finite;
}

}  // namespace gossamer::client
