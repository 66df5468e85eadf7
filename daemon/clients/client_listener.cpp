// Connections and sessions of client_listener.hpp. Handlers hold the listener weakly and a connection by its number:
// both may have gone when a handler runs.

#include "daemon/clients/client_listener.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <ranges>
#include <utility>

#include "daemon/clients/client_handshake.hpp"
#include "daemon/system/accepting.hpp"
#include "daemon/system/unix_socket.hpp"
#include "gossip/check.hpp"

namespace gossamer::daemon {
namespace {

using layout::AttachStatus;

FileDescriptor spare_descriptor() {
  return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

void ClientSession::close() {
  if (end_) end_();
}

/// A client whose memory is sound. The memory may still have to be shared with a GPU.
struct ClientListener::Asking {
  AttachOffer offer;
  ClientMemory memory;
};

struct ClientListener::Connection {
  Connection(asio::io_context& loop, FileDescriptor fd) : socket(loop, fd.release()), deadline(loop), wake(loop) {}
  asio::posix::stream_descriptor socket;
  asio::steady_timer deadline;          // runs until the client is attached
  asio::posix::stream_descriptor wake;  // the client's eventfd, once attached
  std::optional<Asking> asking;         // what the client asked for; empty once it is attached
  std::shared_ptr<ClientSession> session;
  std::uint64_t inode = 0;  // the inode of the client's memory
  Caller caller;
};

std::expected<std::shared_ptr<ClientListener>, std::string> ClientListener::open(asio::io_context& loop,
                                                                                 ClientListenerOptions options,
                                                                                 ClientEvents& events,
                                                                                 spdlog::logger& log) {
  GOSSAMER_CHECK(options.limits.clients > 0);
  std::expected<UnixSocket, std::string> listening = UnixSocket::listen(options.socket, SOCK_SEQPACKET);
  if (!listening) return std::unexpected(std::move(listening.error()));
  std::shared_ptr<ClientListener> opened(
      new ClientListener(loop, std::move(options), events, log, std::move(*listening)));
  opened->accept_when_ready();
  opened->look_at_socket();
  return opened;
}

ClientListener::ClientListener(asio::io_context& loop, ClientListenerOptions options, ClientEvents& events,
                               spdlog::logger& log, UnixSocket listening)
    : loop_(loop),
      options_(std::move(options)),
      events_(events),
      log_(log),
      ledger_(options_.limits),
      attached_(options_.socket.parent_path()),
      listening_(std::move(listening)),
      acceptor_(loop, listening_->get()),
      retry_(loop),
      look_(loop),
      spare_(spare_descriptor()) {}

ClientListener::~ClientListener() {
  acceptor_.release();  // listening_ owns the descriptor
}

/// A handler that calls `action` if this object still exists and the wait has not failed.
auto ClientListener::later(void (ClientListener::*action)()) {
  return [weak = weak_from_this(), action](std::error_code error) {
    const std::shared_ptr<ClientListener> self = weak.lock();
    if (self && !error) ((*self).*action)();
  };
}

/// Wraps a handler so that it runs only if this object and the connection still exist and the wait was not cancelled.
template <class Action>
auto ClientListener::on(std::uint64_t number, Action action) {
  return [weak = weak_from_this(), number, action = std::move(action)](std::error_code error) {
    const std::shared_ptr<ClientListener> self = weak.lock();
    if (!self || error == asio::error::operation_aborted) return;
    const auto found = self->connections_.find(number);
    if (found != self->connections_.end()) action(*self, *found->second);
  };
}

/// The file may have been removed or replaced: clients would then look for the daemon in vain.
void ClientListener::look_at_socket() {
  look_.expires_after(options_.socket_look_period);
  look_.async_wait(later(&ClientListener::look_at_socket));
  const auto again = UnixSocket::listen_again(listening_, acceptor_, log_);
  if (!again && last_socket_problem_.is_due(again.error()))
    log_.error("the clients' socket is gone, and no other can be made: {}; trying again", again.error());
  if (!again.value_or(false)) return;
  retry_.cancel();
  accept_when_ready();
}

void ClientListener::accept_when_ready() {
  acceptor_.async_wait(asio::posix::stream_descriptor::wait_read, later(&ClientListener::accept_some));
}

void ClientListener::accept_some() {
  for (int i = 0; i < max_accepts_per_turn; ++i) {
    FileDescriptor socket(::accept4(listening_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      begin(std::move(socket));
      continue;
    }
    const int problem = errno;
    if (problem == EAGAIN || problem == EINTR || problem == ECONNABORTED) break;
    if (problem == EMFILE || problem == ENFILE) turn_one_away();
    log_.error(
        "cannot accept a client: {}; trying again; if it stays, raise the limit on open files (LimitNOFILE= of "
        "the unit)",
        std::strerror(problem));
    retry_.expires_after(accept_retry);
    retry_.async_wait(later(&ClientListener::accept_some));
    return;
  }
  retry_.expires_after(accept_pause);
  retry_.async_wait(later(&ClientListener::accept_when_ready));
}

/// When no descriptors are left, the spare one is used to tell the client why it is refused.
void ClientListener::turn_one_away() {
  spare_.reset();
  if (const FileDescriptor socket(::accept4(listening_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      socket) {
    ++refused_;
    const AttachRefusal why = out_of_descriptors();
    send_reply(socket.get(), options_.node, why.status, why.message);
  }
  spare_ = spare_descriptor();
}

std::optional<std::string> ClientListener::objection_to(const Caller& caller, std::string_view job) const {
  return options_.rights == nullptr ? std::nullopt : options_.rights->objection_to_training(caller, job);
}

void ClientListener::end_not_permitted() {
  for (const auto& [number, connection] : connections_) {
    ClientSession* const session = connection->session.get();
    const auto why = session == nullptr ? std::nullopt : objection_to(session->caller(), session->memory().job());
    if (!why) continue;
    log_.warn("process {} is let go: {}", session->pid(), *why);
    session->close();
  }
}

void ClientListener::begin(FileDescriptor socket) {
  Caller caller = caller_of(socket.get());
  const auto waits = [](const auto& connection) { return connection->session == nullptr; };
  if (!may_connect(caller.user, max_pending_attaches,
                   connections_ | std::views::values | std::views::filter(waits) |
                       std::views::transform([](const auto& connection) { return connection->caller.user; }))) {
    ++refused_;
    return send_reply(socket.get(), options_.node, AttachStatus::limit_reached,
                      "too many clients are attaching at once: try again");
  }
  const std::uint64_t number = next_number_++;
  Connection& connection =
      *connections_.emplace(number, std::make_unique<Connection>(loop_, std::move(socket))).first->second;
  connection.caller = std::move(caller);
  connection.deadline.expires_after(options_.attach_timeout);
  connection.deadline.async_wait(on(number, [number](ClientListener& self, Connection& late) {
    if (late.session) return;
    self.refuse(number, late, {AttachStatus::bad_layout, "nothing was asked for in time"});
  }));
  expect_request(number);
}

void ClientListener::expect_request(std::uint64_t number) {
  connections_.at(number)->socket.async_wait(
      asio::posix::stream_descriptor::wait_read,
      on(number, [number](ClientListener& self, Connection& connection) { self.receive(number, connection); }));
}

void ClientListener::receive(std::uint64_t number, Connection& connection) {
  auto received = receive_attach(connection.socket.native_handle());
  if (std::holds_alternative<NothingYet>(received)) return expect_request(number);
  if (std::holds_alternative<Disconnected>(received)) return finish(number);
  if (const auto* why = std::get_if<AttachRefusal>(&received)) return refuse(number, connection, *why);
  auto asking = look_at(connection, std::get<AttachOffer>(std::move(received)));
  if (!asking) return refuse(number, connection, asking.error());
  connection.asking = std::move(*asking);
  share(number, connection);
}

/// Maps and checks the offered memory of the host.
std::expected<ClientListener::Asking, AttachRefusal> ClientListener::look_at(Connection& connection,
                                                                             AttachOffer offer) {
  if (refusing_) return cannot_attach(AttachStatus::stopping, "the daemon is going down: try again when it is back");
  const Caller& caller = connection.caller;
  if (caller.user == Caller::nobody)
    return cannot_attach(AttachStatus::bad_layout, "the kernel does not say who is asking");
  if (auto objection = ledger_.objection(caller.user, 0))
    return cannot_attach(AttachStatus::limit_reached, *std::move(objection));
  std::expected<ClientMemory, AttachRefusal> memory =
      ClientMemory::map(offer.memory.get(), offer.memory_bytes,
                        [&](std::uint64_t bytes) { return ledger_.objection(caller.user, bytes); });
  if (!memory) return std::unexpected(std::move(memory.error()));
  if (memory->on_device() != offer.device.has_value()) {
    return cannot_attach(AttachStatus::bad_layout,
                         memory->on_device()
                             ? "buffers_in says that the buffers are in a GPU's memory, which was not offered"
                             : "a GPU's memory was offered, but buffers_in says that no buffers are there");
  }
  if (offer.device && offer.device->bytes < memory->device_bytes()) {
    return cannot_attach(AttachStatus::bad_layout, fmt::format("the GPU's memory has {} bytes; the buffers need {}",
                                                               offer.device->bytes, memory->device_bytes()));
  }
  if (const auto why = objection_to(caller, memory->job())) return cannot_attach(AttachStatus::not_permitted, *why);
  return Asking{std::move(offer), std::move(*memory)};
}

/// Takes the client, after its memory is shared with a GPU where that is needed. Both may be over when this returns,
/// and the connection may then be gone.
void ClientListener::share(std::uint64_t number, Connection& connection) {
  Asking& asking = *connection.asking;
  const gossip::Device* const home = events_.home_of(asking.memory);
  if (!asking.offer.device && home == nullptr) return take(number, connection);
  if (options_.devices == nullptr) {
    return refuse(number, connection, {AttachStatus::no_device, "this daemon does not work in the memory of GPUs"});
  }
  connection.deadline.expires_after(options_.device_timeout);
  connection.deadline.async_wait(on(number, [number](ClientListener& self, Connection& late) {
    if (late.session) return;
    self.refuse(number, late,
                {late.asking->offer.device ? AttachStatus::no_device : AttachStatus::job_busy,
                 "the NVIDIA driver does not answer gossamerd in time; if nvidia-smi hangs, too, restart the machine"});
  }));
  if (asking.offer.device) {
    AttachOffer::Device& device = *asking.offer.device;
    options_.devices->map(device.gpu, std::move(device.memory), device.bytes, when_shared(number));
  } else {
    options_.devices->pin(*home, asking.memory.host_buffers(), asking.memory.pages(), when_shared(number));
  }
}

Devices::Answer ClientListener::when_shared(std::uint64_t number) {
  return [weak = weak_from_this(), number](std::expected<std::shared_ptr<DeviceMemory>, AttachRefusal> shared) {
    const std::shared_ptr<ClientListener> self = weak.lock();
    if (!self) return;
    const auto found = self->connections_.find(number);
    if (found == self->connections_.end()) return;  // the client waits no longer
    Connection& connection = *found->second;
    if (!shared) return self->refuse(number, connection, shared.error());
    connection.asking->memory.share(std::move(*shared));
    self->take(number, connection);
  };
}

std::expected<std::shared_ptr<ClientSession>, AttachRefusal> ClientListener::make_session(std::uint64_t number,
                                                                                          Connection& connection) {
  if (refusing_) return cannot_attach(AttachStatus::stopping, "the daemon is going down: try again when it is back");
  Asking& asking = *connection.asking;
  const Caller& caller = connection.caller;
  // Rights may have changed while a GPU's driver was waited for.
  if (const auto why = objection_to(caller, asking.memory.job()))
    return cannot_attach(AttachStatus::not_permitted, *why);
  const ClientLedger::Entry entry{caller.user, asking.memory.key().name_hash, asking.memory.most_bytes()};
  if (auto objection = ledger_.objection(entry))
    return cannot_attach(AttachStatus::limit_reached, *std::move(objection));
  if (!asking.offer.resume && attached_.expects_others(asking.memory.job(), caller.process) &&
      std::chrono::steady_clock::now() - began_ < return_patience) {
    return cannot_attach(
        AttachStatus::job_busy,
        "processes of the job that have its model were attached before this daemon began, and are waited for");
  }
  std::shared_ptr<NodeMemory> kept =
      asking.offer.kept ? NodeMemory::take_back(std::move(asking.offer.kept), NodeMemory::shape_of(asking.memory))
                        : nullptr;
  auto session =
      std::make_shared<ClientSession>(std::move(asking.memory), caller, asking.offer.resume, number, std::move(kept));
  for (const auto& other : connections_ | std::views::values) {
    const bool same =
        other->session && caller.process > 0 && other->session->pid() == caller.process;  // 0: not visible
    if (same) session->process_serving_ns_ = other->session->process_serving_ns_;
  }
  if (std::expected<void, AttachRefusal> taken = events_.attach(session); !taken)
    return std::unexpected(std::move(taken.error()));
  ledger_.enter(number, entry);
  return session;
}

void ClientListener::take(std::uint64_t number, Connection& connection) {
  auto session = make_session(number, connection);
  if (!session) return refuse(number, connection, session.error());
  AttachOffer offer = std::move(connection.asking->offer);
  connection.asking.reset();
  connection.session = std::move(*session);
  connection.session->tell_ = [weak = weak_from_this(), number](const std::string& message) {
    const std::shared_ptr<ClientListener> self = weak.lock();
    if (!self || !self->connections_.contains(number)) return;
    send_reply(self->connections_.at(number)->socket.native_handle(), self->options_.node, AttachStatus::accepted,
               message);
  };
  connection.session->end_ = [weak = weak_from_this(), number] {
    if (const std::shared_ptr<ClientListener> self = weak.lock())
      asio::post(self->loop_, [weak, number] {
        if (const std::shared_ptr<ClientListener> still = weak.lock()) still->finish(number);
      });
  };
  ++sessions_;
  attached_.came(number, connection.session->memory().job(), connection.session->pid());
  connection.inode = inode_of(offer.memory.get());
  if (options_.kept != nullptr) options_.kept->keep(offer.memory.get());
  warn_of_limits();
  connection.deadline.cancel();
  connection.wake.assign(offer.wake.release());
  const std::shared_ptr<NodeMemory>& to_keep = connection.session->kept();
  send_reply(connection.socket.native_handle(), options_.node, AttachStatus::accepted, "",
             to_keep ? to_keep->to_keep() : -1);
  watch_socket(number);
  watch_wake(number);
}

void ClientListener::refuse(std::uint64_t number, Connection& connection, const AttachRefusal& why) {
  if (why.status == AttachStatus::device_opening) {  // the client asks again at once
    send_reply(connection.socket.native_handle(), options_.node, why.status, why.message);
    return finish(number);
  }
  ++refused_;
  if (last_refusal_.is_due(why.message))
    log_.warn("a client was refused: {} (process {} of user {})", why.message, connection.caller.process,
              connection.caller.user);
  send_reply(connection.socket.native_handle(), options_.node, why.status, why.message);
  finish(number);
}

void ClientListener::warn_of_limits() {
  const std::string near = ledger_.nearly_used();
  if (!near.empty() && last_near_limit_.is_due(near))
    log_.warn("clients will soon be refused, by [limits] in the configuration: {}", near);
}

/// Attached clients send nothing more: whatever happens at the socket ends the session.
void ClientListener::watch_socket(std::uint64_t number) {
  connections_.at(number)->socket.async_wait(
      asio::posix::stream_descriptor::wait_read, on(number, [number](ClientListener& self, Connection& connection) {
        char byte = 0;
        const ssize_t got = ::recv(connection.socket.native_handle(), &byte, 1, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self.watch_socket(number);
        if (got > 0)
          self.log_.warn(
              "client {} sent what it must not after attaching: detached; use the client library "
              "that came with this daemon",
              connection.session->pid());
        self.finish(number);
      }));
}

void ClientListener::watch_wake(std::uint64_t number) {
  connections_.at(number)->wake.async_wait(asio::posix::stream_descriptor::wait_read,
                                           on(number, [number](ClientListener& self, Connection& connection) {
                                             const Rung rung = drain_eventfd(connection.wake.native_handle());
                                             const std::shared_ptr<ClientSession> session = connection.session;
                                             if (rung == Rung::without_end) return self.end_without_end(number);
                                             self.watch_wake(number);
                                             if (rung == Rung::yes) self.events_.woken(*session);
                                           }));
}

/// Ends a session whose eventfd would keep this thread busy: it was made with EFD_SEMAPHORE, or is rung all the time.
void ClientListener::end_without_end(std::uint64_t number) {
  log_.warn("process {} is let go: it rings without end", connections_.at(number)->session->pid());
  finish(number);
}

void ClientListener::finish(std::uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  const std::shared_ptr<ClientSession> session = std::move(found->second->session);
  const std::uint64_t inode = found->second->inode;
  connections_.erase(found);
  if (!session) return;
  session->end_ = nullptr;
  session->tell_ = nullptr;
  --sessions_;
  ledger_.leave(number);
  attached_.went(number);
  if (options_.kept != nullptr) options_.kept->forget(inode);
  events_.detached(*session);
}

}  // namespace gossamer::daemon
