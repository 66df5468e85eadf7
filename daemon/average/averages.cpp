#include "daemon/average/averages.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <ranges>

#include "daemon/system/accepting.hpp"
#include "sdk/layout/datagram.hpp"
#include "sdk/layout/names.hpp"

namespace gossamer::daemon {

using gossip::AverageNote;
using gossip::AverageValues;
using gossip::Participant;
using layout::AverageCall;
using layout::AverageOpen;
using layout::AverageReply;
using layout::AverageStatus;

namespace {

/// How often a waiting process is told whom it waits for.
constexpr TimeUs waiting_period_us = us_per_s;
/// When a waiting process is told first. This is early because a call may have a short time-out.
constexpr TimeUs first_told_us = 100 * us_per_ms;
/// When a wait is logged first, and how often after that.
constexpr TimeUs log_after_us = 10 * us_per_s;
constexpr TimeUs log_period_us = 60 * us_per_s;
/// The most processes that may be connected without having said what they want.
constexpr std::size_t max_opening = 64;
/// How long a process that has connected may take to say what it wants.
constexpr TimeUs open_patience_us = 5 * us_per_s;
/// How many times a process's numbers are in memory: its contribution, the results, those of the last round, and what
/// others send to an owner. The eight-bit form also keeps what rounding has taken away.
constexpr std::uint64_t copies_of_values = 4;
constexpr std::uint64_t copies_of_rounded_values = 6;
/// How long a process that has gone may take to leave. The others must agree on it, which they can do once all dead
/// members are known to be dead.
constexpr TimeUs leave_patience_us = 20 * us_per_s;

std::uint64_t hash_of(std::string_view job, std::string_view name) {
  const std::string text = fmt::format("{}/{}", job, name);  // a name has no slash
  return XXH3_64bits(text.data(), text.size());
}

/// The bits of a collective's layout hash, which must be the same at all its members: the number of elements, whether
/// they are rounded, and a digest of the rest, which is 0 by default.
constexpr int element_bits = 35;
static_assert(layout::max_average_elements < std::uint64_t{1} << element_bits);
constexpr std::uint64_t rounded_bit = std::uint64_t{1} << element_bits;
constexpr int digest_shift = element_bits + 1;

std::uint64_t layout_hash_of(const AverageOpen& open) {
  const std::uint64_t rest = std::uint64_t{open.layout} << 32 | open.form;
  const std::uint64_t digest = rest == 0 ? 0 : XXH3_64bits(&rest, sizeof rest) << digest_shift;
  return digest | (open.form != 0 ? rounded_bit : 0) | open.elements;
}

std::string difference_of(const std::string& node, std::uint64_t theirs, std::uint64_t ours) {
  const auto elements = [](std::uint64_t hash) { return hash & (rounded_bit - 1); };
  if (elements(theirs) != elements(ours))
    return fmt::format("node {} averages {} numbers under this name, and this process {}", node, elements(theirs),
                       elements(ours));
  const auto codec = [](std::uint64_t hash) { return (hash & rounded_bit) != 0 ? "q8" : "f32"; };
  if (std::string_view(codec(theirs)) != codec(ours))
    return fmt::format("node {} averages with the codec {} under this name, and this process with {}", node,
                       codec(theirs), codec(ours));
  return fmt::format("node {} averages numbers under this name that have other keys or shapes", node);
}

template <std::size_t n>
std::string_view text_of(const char (&text)[n]) {
  return {text, ::strnlen(text, n)};
}

TimeUs time_of_day_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

/// Bytes that the machine can give without swapping; the largest number if this is not known.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes << 10;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

std::unexpected<std::string> cannot(std::string why) {
  return std::unexpected(std::move(why));
}

void send_reply(int socket, AverageReply reply, const std::string& message = "") {
  message.copy(reply.message, sizeof reply.message - 1);
  ::send(socket, &reply, sizeof reply, MSG_DONTWAIT | MSG_NOSIGNAL);
}

AverageReply reply_to(std::uint64_t number, AverageStatus status) {
  AverageReply reply{};
  reply.number = number;
  reply.status = static_cast<std::uint32_t>(status);
  return reply;
}

}  // namespace

struct Averages::Session {
  Session(asio::io_context& loop, FileDescriptor fd) : socket(loop, fd.release()), process(loop) {}
  asio::posix::stream_descriptor socket;
  asio::posix::stream_descriptor process;  // a pidfd, readable once the process has ended
  TimeUs since_us = 0;
  Caller caller;
  std::optional<CollectiveMember> member;
  std::uint64_t id = 0;      // its entry in the ledger
  std::uint64_t number = 0;  // the number of the last call
  std::string job = {};
  std::string name = {};  // names the job and the average in the log
  TimeUs told_us = 0;     // when the process was told last; call() backdates it for an early first time
  TimeUs log_us = 0;      // when the log is told of the wait next
  struct Difference {
    NodeId node;
    std::string text;
  };
  std::optional<Difference> why_not = {};  // a node that averages something else under this name, and what differs
  bool gone = false;                       // the connection is closed; the member leaves
  TimeUs gone_us = 0;                      // when the connection was closed
};

Averages::Averages(asio::io_context& loop, AveragesHost& host, std::uint64_t first_life, const ClientLimits& limits,
                   spdlog::logger& log)
    : loop_(loop),
      host_(host),
      next_life_(std::max(first_life, gossip::nobodys_life + 1)),
      ledger_(limits),
      log_(log),
      acceptor_(loop),
      retry_(loop) {}

Averages::~Averages() {
  *alive_ = false;
  if (acceptor_.is_open()) acceptor_.release();  // listening_ owns the descriptor
}

// --- processes ----------------------------------------------------------------------------------------------------

std::expected<void, std::string> Averages::open(const std::filesystem::path& socket, const UserRights& rights) {
  rights_ = &rights;
  auto listening = UnixSocket::listen(socket, SOCK_SEQPACKET);
  if (!listening) return std::unexpected(std::move(listening.error()));
  listening_.emplace(std::move(*listening));
  acceptor_.assign(listening_->get());
  accept_when_ready();
  return {};
}

/// A handler that acts only while this exists.
auto Averages::later(void (Averages::*action)()) {
  return [this, alive = alive_, action](std::error_code error) {
    if (!error && *alive) (this->*action)();
  };
}

void Averages::look_at_socket(TimeUs now_us) {
  constexpr TimeUs period_us = std::chrono::microseconds(socket_look_period).count();
  if (!listening_ || now_us - looked_at_socket_us_ < period_us) return;
  looked_at_socket_us_ = now_us;
  if (!UnixSocket::listen_again(listening_, acceptor_, log_).value_or(false)) return;
  retry_.cancel();
  accept_when_ready();
}

void Averages::accept_when_ready() {
  acceptor_.async_wait(asio::posix::stream_descriptor::wait_read, later(&Averages::accept_some));
}

void Averages::accept_some() {
  for (int i = 0; i < max_accepts_per_turn; ++i) {
    FileDescriptor socket(::accept4(listening_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      retry_.expires_after(accept_retry);
      return retry_.async_wait(later(&Averages::accept_some));
    }
    if (!socket) break;
    const auto session = std::make_shared<Session>(loop_, std::move(socket));
    session->caller = caller_of(session->socket.native_handle());
    const auto users = [](const auto& other) { return other->caller.user; };
    auto opening = sessions_ | std::views::filter([](const auto& other) { return !other->member; });
    if (!may_connect(session->caller.user, max_opening, opening | std::views::transform(users))) {
      refuse(*session, "too many processes begin to average at once: try again");
      continue;
    }
    if (const auto why = ledger_.objection(session->caller.user, 0)) {
      refuse(*session, "exact averages: " + *why);
      continue;
    }
    session->id = ++accepted_;
    ledger_.enter(session->id, {.user = session->caller.user});
    session->since_us = host_.now_us();
    sessions_.push_back(session);
    watch_process(session);
    wait_for(session);
  }
  retry_.expires_after(accept_pause);
  retry_.async_wait(later(&Averages::accept_when_ready));
}

/// Ends the session when the process ends: a child of the process may keep the connection open for longer.
void Averages::watch_process(const std::shared_ptr<Session>& session) {
  if (session->caller.process <= 0) return;
  FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, session->caller.process, 0)));
  if (!process) return;
  session->process.assign(process.release());
  session->process.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this, weak = std::weak_ptr(session)](std::error_code error) {
                                const auto held = weak.lock();
                                if (error || !held || held->gone) return;
                                end(*held);
                                after_event();
                              });
}

void Averages::wait_for(const std::shared_ptr<Session>& session) {
  session->socket.async_wait(asio::posix::stream_descriptor::wait_read,
                             [this, weak = std::weak_ptr(session)](std::error_code error) {
                               const auto held = weak.lock();
                               if (!error && held && !held->gone) read(held);
                             });
}

void Averages::read(const std::shared_ptr<Session>& session) {
  std::array<std::byte, sizeof(AverageOpen) + 1> bytes;  // one byte more, to notice a datagram that is too long
  const ReceivedDatagram datagram = receive_datagram(session->socket.native_handle(), bytes);
  if (datagram.size < 0 && (errno == EAGAIN || errno == EINTR)) return wait_for(session);
  if (datagram.size <= 0) {
    end(*session);
    return after_event();
  }
  const auto received = std::span<const std::byte>(bytes).first(static_cast<std::size_t>(datagram.size));
  const std::vector<FileDescriptor>& descriptors = datagram.descriptors;
  const auto done = session->member           ? call(*session, received)
                    : descriptors.size() == 1 ? begin(session, received, descriptors.front().get())
                                              : cannot("a request to average comes with one descriptor, the memory");
  if (!done) {
    log_.warn("a process that averages was refused: {}", done.error());
    refuse(*session, done.error());
  } else {
    wait_for(session);
  }
  after_event();
}

std::expected<void, std::string> Averages::begin(const std::shared_ptr<Session>& held, std::span<const std::byte> bytes,
                                                 int memory) {
  Session& session = *held;
  AverageOpen open{};
  if (bytes.size() != sizeof open && bytes.size() != layout::average_open_bytes_1)
    return cannot("this is no request to average: it has a wrong size");
  std::memcpy(&open, bytes.data(), bytes.size());
  if (open.magic != layout::average_magic) return cannot("this is no request to average: its mark is wrong");
  if (open.version != (bytes.size() == sizeof open ? layout::average_version : 1))
    return cannot("the client speaks another version: use the client library that came with this daemon");
  const std::string_view job = text_of(open.job);
  const std::string_view name = text_of(open.name);
  if (!layout::is_job_name(job) || !layout::is_job_name(name))
    return cannot(fmt::format("the names of job and average are {}", layout::job_name_form));
  if (!host_.may_train(host_.id(), job))
    return cannot(fmt::format("this node's certificate does not let it train the job {}", job));
  if (auto why = rights_->objection_to_training(session.caller, job)) return cannot(*std::move(why));
  if (open.elements == 0 || open.elements > layout::max_average_elements)
    return cannot(
        fmt::format("{} numbers cannot be averaged: from 1 to {} can", open.elements, layout::max_average_elements));
  const auto form = layout::AverageFormWord::unpack(open.form);
  const std::uint64_t needed =
      (form.eight_bits ? copies_of_rounded_values : copies_of_values) * open.elements * sizeof(float);
  const ClientLedger::Entry entry{
      .user = session.caller.user, .job = std::hash<std::string_view>{}(job), .memory_bytes = needed};
  ledger_.leave(session.id);  // the session is entered again with its memory, or it ends
  if (const auto why = ledger_.objection(entry)) return cannot("exact averages: " + *why);
  if (const std::uint64_t available = available_memory(); needed > available) {
    return cannot(fmt::format("averaging {} numbers takes {} MiB, and this machine has {} MiB left", open.elements,
                              needed >> 20, available >> 20));
  }
  auto values = map(memory, open.elements);
  if (!values) return std::unexpected(std::move(values.error()));
  const Participant self{host_.id(), next_life_++};
  ledger_.enter(session.id, entry);
  session.job = job;
  session.name = fmt::format("job {}, average {}", job, name);
  session.member.emplace(
      JobKey{hash_of(job, name), layout_hash_of(open)}, self, std::move(*values),
      AverageForm{.eight_bits = form.eight_bits, .exact = form.exact},
      [this](const NodeId& to, const Message& message) { return send(to, message); },
      [this, weak = std::weak_ptr(held)](Workers::Work&& task, Workers::Work&& done) {
        run(weak, std::move(task), std::move(done));
      });
  session.member->link_up(host_.id());
  for (const NodeId& node : host_.neighbours())
    session.member->link_up(node);
  return {};
}

std::expected<AveragedMemory, std::string> Averages::map(int memory, std::uint64_t elements) const {
  const auto bytes = static_cast<std::size_t>(elements * sizeof(float));
  const int seals = ::fcntl(memory, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0)
    return cannot("the memory is no memfd that is sealed against shrinking and growing");
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(memory, &system) != 0 || system.f_type != TMPFS_MAGIC || ::fstat(memory, &file) != 0 ||
      file.st_size != static_cast<off_t>(bytes) || static_cast<std::uint64_t>(file.st_blocks) * 512 < bytes) {
    return cannot("the memory does not have four bytes for each number, with pages for all of them");
  }
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) return cannot(fmt::format("the memory cannot be mapped: {}", std::strerror(errno)));
  std::shared_ptr<const void> owner(mapped, [bytes](void* begin) { ::munmap(begin, bytes); });
  return AveragedMemory{std::move(owner), {static_cast<float*>(mapped), static_cast<std::size_t>(elements)}};
}

std::expected<void, std::string> Averages::call(Session& session, std::span<const std::byte> bytes) {
  AverageCall call;
  if (bytes.size() != sizeof call) return cannot("this is no call: it has a wrong size");
  std::memcpy(&call, bytes.data(), sizeof call);
  if (session.member->is_waiting()) return cannot("the last call has not been answered");
  if (call.number <= session.number || call.at_least == 0)
    return cannot("a call has a larger number than the last one");
  if (call.at_least > gossip::max_average_members)
    return cannot(fmt::format("at most {} processes average with each other", gossip::max_average_members));
  session.number = call.number;
  session.told_us = host_.now_us() - waiting_period_us + first_told_us;
  session.log_us = host_.now_us() + log_after_us;
  session.member->call(call.at_least, call.grace_ms * us_per_ms);
  return {};
}

void Averages::end_not_permitted() {
  for (const auto& session : Sessions(sessions_)) {
    const bool begun = session->member && !session->gone;
    const auto why = begun ? rights_->objection_to_training(session->caller, session->job) : std::nullopt;
    if (why) refuse(*session, *why);
  }
  after_event();
}

void Averages::end(Session& session) {
  if (!std::exchange(session.gone, true)) session.gone_us = host_.now_us();
  std::error_code ignored;
  session.socket.close(ignored);
  session.process.close(ignored);
  if (session.member) session.member->leave();
}

void Averages::refuse(Session& session, const std::string& why) {
  send_reply(session.socket.native_handle(), reply_to(session.number, AverageStatus::refused), why);
  end(session);
}

void Averages::answer(Session& session) {
  const auto answer = session.member->take_answer();
  if (!answer || session.gone) return;
  const auto status = answer->done ? AverageStatus::done : AverageStatus::missed;
  AverageReply reply = reply_to(session.number, status);
  reply.round = answer->round;
  reply.of = static_cast<std::uint32_t>(answer->of);
  reply.joined = answer->joined ? 1 : 0;
  reply.waits = wait_word(session, layout::AverageWait::not_told);
  send_reply(session.socket.native_handle(), reply);
}

void Averages::tell_what_is_waited_for(Session& session) {
  const TimeUs now_us = host_.now_us();
  if (session.gone || !session.member->is_waiting() || now_us - session.told_us < waiting_period_us) return;
  session.told_us = now_us;
  AverageReply reply = reply_to(session.number, AverageStatus::waiting);
  const auto [what, why] = waits_for(session);
  reply.of = static_cast<std::uint32_t>(session.member->averaging().members().size());
  reply.waits = wait_word(session, what);
  send_reply(session.socket.native_handle(), reply, why);
  if (now_us < session.log_us) return;
  log_.warn("{}: a process still waits for an average: {}", session.name, why);
  session.log_us = now_us + log_period_us;
}

std::uint32_t Averages::wait_word(const Session& session, layout::AverageWait what) {
  return layout::AverageWaitWord{.what = what, .differs = session.why_not.has_value()}.pack();
}

std::pair<layout::AverageWait, std::string> Averages::waits_for(const Session& session) const {
  using layout::AverageWait;
  const gossip::Averaging& averaging = session.member->averaging();
  const std::string why_not = session.why_not ? "; " + session.why_not->text : "";
  if (!averaging.is_member()) return {AverageWait::entry, "it is no member yet: it asks the other nodes" + why_not};
  const std::size_t members = averaging.members().size();
  if (members < session.member->at_least())
    return {AverageWait::members, fmt::format("there are {} of the {} members that it wants{}", members,
                                              session.member->at_least(), why_not)};
  if (averaging.plan() != nullptr)
    return {AverageWait::values, fmt::format("the values of {} members are on their way", members)};
  const auto late = averaging.not_ready();
  if (late.empty())
    return {AverageWait::contributions, fmt::format("not all of the {} members have contributed", members)};
  std::string text = "no contribution yet from";
  for (const Participant& one : late | std::views::take(8)) {
    const auto here = std::ranges::find_if(
        sessions_, [&](const auto& other) { return other->member && other->member->self() == one; });
    text += fmt::format("{} {}", &one == &late.front() ? "" : ",",
                        here == sessions_.end() ? host_.called(one.node)
                                                : fmt::format("process {} of this node", (*here)->caller.process));
  }
  return {AverageWait::late, std::move(text)};
}

// --- other nodes --------------------------------------------------------------------------------------------------

void Averages::link_up(const NodeId& node) {
  for (const auto& session : sessions_) {
    if (!session->member) continue;
    session->member->node_alive(node);
    session->member->link_up(node);
  }
  after_event();
}

void Averages::link_down(const NodeId& node) {
  for (const auto& session : sessions_)
    if (session->member) session->member->link_down(node);
}

void Averages::node_dead(const NodeId& node) {
  for (const auto& session : sessions_)
    if (session->member) session->member->node_dead(node);
  after_event();
}

void Averages::received(const NodeId& from, AverageNote&& note) {
  deliver(from, note);
  after_event();
}

void Averages::received(const NodeId& from, AverageValues&& values) {
  deliver(from, values);
  after_event();
}

/// Drops a message whose sender is another node than the one at the link's other end.
template <class Received>
void Averages::deliver(const NodeId& from, const Received& message) {
  if (message.from.node != from) return;
  bool is_nobody = false;
  if constexpr (std::is_same_v<Received, AverageNote>)
    is_nobody = std::holds_alternative<gossip::RoundNobody>(message.message.body);
  bool known = false;
  for (const auto& session : sessions_) {
    if (!session->member || session->member->collective().name_hash != message.collective.name_hash) continue;
    CollectiveMember& member = *session->member;
    if (!is_nobody && !host_.may_train(from, session->job)) continue;
    if (member.self() == message.from || (message.to.life != 0 && message.to != member.self())) continue;
    if (member.collective().layout_hash != message.collective.layout_hash) {
      session->why_not = Session::Difference{
          from, difference_of(host_.called(from), message.collective.layout_hash, member.collective().layout_hash)};
      continue;
    }
    known = true;
    // RoundNobody does not clear the difference: a node that averages other numbers under this name sends it, too.
    if (!is_nobody && session->why_not && session->why_not->node == from) session->why_not.reset();
    member.received(message);
  }
  if constexpr (std::is_same_v<Received, AverageNote>) {
    if (known || is_nobody) return;
    const Participant nobody{host_.id(), message.to.life == 0 ? gossip::nobodys_life : message.to.life};
    send(from,
         AverageNote{
             message.collective, nobody, message.from, {.founding = {}, .round = 0, .body = gossip::RoundNobody{}}});
  }
}

bool Averages::send(const NodeId& to, const Message& message) {
  if (to != host_.id()) return host_.send(to, message);
  to_self_.push_back(message);
  return true;
}

void Averages::run(const std::weak_ptr<Session>& session, Workers::Work&& task, Workers::Work&& done) {
  Workers::Work then = [this, alive = alive_, session, done = std::move(done)]() mutable {
    if (!*alive || session.expired()) return;
    done();
    after_event();
  };
  if (host_.workers().submit(std::move(task), std::move(then))) return;
  task();                              // NOLINT(bugprone-use-after-move): what is not taken is left as it was
  asio::post(loop_, std::move(then));  // NOLINT(bugprone-use-after-move)
}

// --- turns --------------------------------------------------------------------------------------------------------

void Averages::tick(bool all_dialled) {
  const TimeUs now_us = host_.now_us();
  look_at_socket(now_us);
  for (const auto& session : sessions_) {
    if (!session->member) {
      if (!session->gone && now_us - session->since_us > open_patience_us)
        refuse(*session, "nothing was asked for in time");
      continue;
    }
    if (all_dialled) session->member->allow_founding(now_us, time_of_day_us());
    session->member->tick(now_us);
    tell_what_is_waited_for(*session);
  }
  after_event();
}

/// Answers processes, removes those that have left, and lets the loop deliver what processes here have for each other.
void Averages::after_event() {
  for (const auto& session : sessions_)
    if (session->member) answer(*session);
  const TimeUs now_us = host_.now_us();
  std::erase_if(sessions_, [this, now_us](const auto& session) {
    const bool over = session->gone && (!session->member || session->member->has_left() ||
                                        now_us - session->gone_us > leave_patience_us);
    if (over) ledger_.leave(session->id);
    return over;
  });
  if (to_self_.empty() || std::exchange(delivering_, true)) return;
  asio::post(loop_, [this, alive = alive_] {
    if (*alive) deliver_here();
  });
}

void Averages::deliver_here() {
  delivering_ = false;
  for (std::size_t left = to_self_.size(); left > 0; --left) {
    const Message message = std::move(to_self_.front());
    to_self_.pop_front();
    if (const auto* note = std::get_if<AverageNote>(&message)) deliver(host_.id(), *note);
    if (const auto* values = std::get_if<AverageValues>(&message)) deliver(host_.id(), *values);
  }
  after_event();
}

}  // namespace gossamer::daemon
