// Connections of control_server.hpp. Handlers hold the core weakly and a connection by its number: both may have gone
// when a handler runs.

#include "daemon/control/control_server.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <ranges>
#include <utility>

#include "daemon/control/control_commands.hpp"
#include "daemon/system/accepting.hpp"
#include "daemon/system/unix_socket.hpp"

namespace gossamer::daemon {
namespace {

/// How much of a command's name an error repeats.
constexpr std::size_t max_named_bytes = 64;

/// Of this thread.
std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::string error_line(std::string_view what) {
  return nlohmann::json{{"error", what}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string control_answer(std::string_view line, const ControlHandler& handler, const Caller& caller) {
  const nlohmann::json request = nlohmann::json::parse(line, nullptr, false);
  if (request.is_discarded()) return error_line("this is not JSON: send one object on one line");
  if (!request.is_object() || !request.contains("command") || !request["command"].is_string())
    return error_line("a request is an object with a string \"command\"");
  try {
    return handler(request, caller).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  } catch (const BadRequest& error) {
    return error_line(error.what());
  } catch (const nlohmann::json::exception&) {
    return error_line(
        fmt::format("the request cannot be answered: a value that the command {} takes is missing, or is of another "
                    "type than it should be; gossamerctl of the same version as this gossamerd sends the right ones",
                    request["command"].get<std::string>().substr(0, max_named_bytes)));
  }
}

class ControlServer::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(asio::io_context& loop, UnixSocket listening, ControlHandler handler, spdlog::logger& log,
       std::chrono::milliseconds timeout)
      : loop_(loop),
        handler_(std::move(handler)),
        log_(log),
        timeout_(timeout),
        listening_(std::move(listening)),
        acceptor_(loop, listening_->get()),
        retry_(loop),
        look_(loop) {}

  void accept_when_ready();
  /// Listens again if the socket's file was removed, since otherwise no command would reach the daemon any more.
  void look_at_socket();
  void stop();
  [[nodiscard]] std::size_t clients() const { return connections_.size(); }

 private:
  struct Connection {
    Connection(asio::io_context& loop, FileDescriptor fd)
        : socket(loop, asio::local::stream_protocol(), fd.release()), deadline(loop), rest(loop) {}
    asio::local::stream_protocol::socket socket;
    asio::steady_timer deadline;
    asio::steady_timer rest;
    std::string input;
    std::string output;
    Caller caller;
  };

  static uid_t user_at(const std::shared_ptr<Connection>& connection) { return connection->caller.user; }
  void accept_some();
  void read_line(std::uint64_t number, Connection& connection);
  /// Answers the line at once, or when its user has rested.
  void answer_in_turn(std::uint64_t number, Connection& connection, std::size_t line_bytes);
  void answer(std::uint64_t number, Connection& connection, std::size_t line_bytes);
  void send_and_close(std::uint64_t number, Connection& connection);
  void set_deadline(std::uint64_t number, Connection& connection);

  /// A handler that acts only while this exists and listens.
  auto later(void (Core::*action)()) {
    return [weak = weak_from_this(), action](std::error_code error) {
      const std::shared_ptr<Core> self = weak.lock();
      if (self && !error && self->listening_) (self.get()->*action)();
    };
  }
  /// A handler that acts only while this exists, the connection is open and the operation was not cancelled. It keeps
  /// the connection's memory until it has run, because a read or write that is cancelled still uses its buffer.
  template <class Action>
  auto on(std::uint64_t number, Action action) {
    return [weak = weak_from_this(), number, held = connections_.at(number), action = std::move(action)](
               std::error_code error, std::size_t size = 0) {
      const std::shared_ptr<Core> self = weak.lock();
      if (!self || error == asio::error::operation_aborted) return;
      if (self->connections_.contains(number)) action(*self, *held, error, size);
    };
  }
  void close(std::uint64_t number);

  asio::io_context& loop_;
  const ControlHandler handler_;
  spdlog::logger& log_;
  const std::chrono::milliseconds timeout_;
  std::optional<UnixSocket> listening_;  // keeps the file; empty once stopped
  asio::posix::stream_descriptor acceptor_;
  asio::steady_timer retry_;
  asio::steady_timer look_;
  std::map<std::uint64_t, std::shared_ptr<Connection>> connections_;  // at most max_control_clients
  std::uint64_t next_number_ = 1;
  std::map<uid_t, std::chrono::steady_clock::time_point> rests_until_;  // users that were answered a short while ago
};

void ControlServer::Core::accept_when_ready() {
  acceptor_.async_wait(asio::posix::stream_descriptor::wait_read, later(&Core::accept_some));
}

void ControlServer::Core::look_at_socket() {
  look_.expires_after(socket_look_period);
  look_.async_wait(later(&Core::look_at_socket));
  if (!UnixSocket::listen_again(listening_, acceptor_, log_).value_or(false)) return;
  retry_.cancel();
  accept_when_ready();
}

void ControlServer::Core::accept_some() {
  for (int i = 0; i < max_accepts_per_turn; ++i) {
    FileDescriptor socket(::accept4(listening_->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) break;
    if (!socket) {
      log_.error(
          "cannot accept a control connection: {}; trying again; if it stays, raise the limit on open files "
          "(LimitNOFILE= of the unit)",
          std::strerror(errno));
      retry_.expires_after(accept_retry);
      return retry_.async_wait(later(&Core::accept_some));
    }
    Caller caller = caller_of(socket.get());
    if (!may_connect(caller.user, max_control_clients,
                     connections_ | std::views::values | std::views::transform(user_at))) {
      const std::string line = error_line("too many control connections are open: try again");
      [[maybe_unused]] const ssize_t sent = ::send(socket.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      continue;
    }
    const std::uint64_t number = next_number_++;
    Connection& connection =
        *connections_.emplace(number, std::make_shared<Connection>(loop_, std::move(socket))).first->second;
    connection.caller = std::move(caller);
    read_line(number, connection);
  }
  retry_.expires_after(accept_pause);
  retry_.async_wait(later(&Core::accept_when_ready));
}

void ControlServer::Core::close(std::uint64_t number) {
  const std::shared_ptr<Connection> connection = connections_.extract(number).mapped();
  std::error_code ignored;
  connection->socket.close(ignored);
  connection->deadline.cancel();
  connection->rest.cancel();
}

void ControlServer::Core::set_deadline(std::uint64_t number, Connection& connection) {
  connection.deadline.expires_after(timeout_);
  connection.deadline.async_wait(on(number, [number](Core& self, Connection& late, std::error_code, std::size_t) {
    if (late.deadline.expiry() <= std::chrono::steady_clock::now()) self.close(number);
  }));
}

void ControlServer::Core::read_line(std::uint64_t number, Connection& connection) {
  set_deadline(number, connection);
  asio::async_read_until(
      connection.socket, asio::dynamic_buffer(connection.input, max_control_line_bytes), '\n',
      on(number, [number](Core& self, Connection& reading, std::error_code error, std::size_t line_bytes) {
        if (!error) return self.answer_in_turn(number, reading, line_bytes);
        if (error != asio::error::not_found) {  // the other end has closed
          self.close(number);
          return;
        }
        reading.output = error_line(fmt::format("a request has at most {} bytes", max_control_line_bytes));
        self.send_and_close(number, reading);
      }));
}

void ControlServer::Core::answer_in_turn(std::uint64_t number, Connection& connection, std::size_t line_bytes) {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(rests_until_, [now](const auto& item) { return item.second <= now; });
  const auto rests = rests_until_.find(connection.caller.user);
  if (rests == rests_until_.end()) return answer(number, connection, line_bytes);
  connection.deadline.expires_at(asio::steady_timer::time_point::max());
  connection.rest.expires_at(rests->second);
  connection.rest.async_wait(
      on(number, [number, line_bytes](Core& self, Connection& rested, std::error_code, std::size_t) {
        self.answer_in_turn(number, rested, line_bytes);
      }));
}

void ControlServer::Core::answer(std::uint64_t number, Connection& connection, std::size_t line_bytes) {
  const uid_t user = connection.caller.user;
  const std::chrono::nanoseconds begun = processor_time();
  connection.output =
      control_answer(std::string_view(connection.input).substr(0, line_bytes), handler_, connection.caller);
  connection.input.erase(0, line_bytes);
  set_deadline(number, connection);
  asio::async_write(connection.socket, asio::buffer(connection.output),
                    on(number, [number](Core& self, Connection& written, std::error_code error, std::size_t) {
                      if (error) {
                        self.close(number);
                      } else {
                        self.read_line(number, written);
                      }
                    }));
  // Most of what was written is sent by now.
  rests_until_[user] = std::chrono::steady_clock::now() + control_rest * (processor_time() - begun);
}

void ControlServer::Core::send_and_close(std::uint64_t number, Connection& connection) {
  asio::async_write(
      connection.socket, asio::buffer(connection.output),
      on(number, [number](Core& self, Connection&, std::error_code, std::size_t) { self.close(number); }));
}

void ControlServer::Core::stop() {
  if (!listening_) return;
  acceptor_.release();  // the descriptor is listening_'s
  retry_.cancel();
  look_.cancel();
  listening_.reset();
  while (!connections_.empty())
    close(connections_.begin()->first);
}

std::expected<std::unique_ptr<ControlServer>, std::string> ControlServer::open(asio::io_context& loop,
                                                                               const std::filesystem::path& socket,
                                                                               ControlHandler handler,
                                                                               spdlog::logger& log,
                                                                               std::chrono::milliseconds timeout) {
  std::expected<UnixSocket, std::string> listening = UnixSocket::listen(socket, SOCK_STREAM);
  if (!listening) return std::unexpected(std::move(listening.error()));
  auto core = std::make_shared<Core>(loop, std::move(*listening), std::move(handler), log, timeout);
  core->accept_when_ready();
  core->look_at_socket();
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(core)));
}

ControlServer::~ControlServer() {
  core_->stop();
}
std::size_t ControlServer::clients() const {
  return core_->clients();
}

}  // namespace gossamer::daemon
