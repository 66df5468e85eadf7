#include "tools/ctl/control_client.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "sdk/layout/socket_path.hpp"

namespace gossamer::ctl {
namespace {

struct NoConnection {
  std::string why;         ///< the cause, as a phrase
  bool forbidden = false;  ///< whether this user has no right to it
};

/// A connected socket, which is closed with this object.
class Connection {
 public:
  static std::expected<Connection, NoConnection> open(const std::string& path);
  Connection(Connection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Connection& operator=(Connection&&) = delete;
  ~Connection() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// An error is a phrase that says what went wrong.
  [[nodiscard]] std::expected<void, std::string> send_line(std::string line);
  [[nodiscard]] std::expected<std::string, std::string> receive_line();

 private:
  explicit Connection(int fd) : fd_(fd) {}
  int fd_;
};

std::expected<Connection, NoConnection> Connection::open(const std::string& path) {
  const auto address = layout::socket_address(path);
  if (!address) return std::unexpected(NoConnection{address.error()});
  Connection connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{answer_timeout.count(), 0};
  ::setsockopt(connection.fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(connection.fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(connection.fd_, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    const int error = errno;
    if (error == EACCES) return std::unexpected(NoConnection{layout::no_right_to(path), true});
    return std::unexpected(NoConnection{std::strerror(error)});
  }
  return connection;
}

std::expected<void, std::string> Connection::send_line(std::string line) {
  line += '\n';
  if (::send(fd_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    return std::unexpected(fmt::format("the question could not be sent: {}", std::strerror(errno)));
  return {};
}

std::expected<std::string, std::string> Connection::receive_line() {
  std::string line;
  std::array<char, 16 * 1024> part;
  while (line.size() <= max_answer_bytes) {
    const ssize_t got = ::recv(fd_, part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN)
      return std::unexpected(fmt::format("no answer within {} s", answer_timeout.count()));
    if (got < 0) return std::unexpected(fmt::format("the answer could not be read: {}", std::strerror(errno)));
    if (got == 0) return std::unexpected("the connection was closed before the answer was complete");
    line.append(part.data(), static_cast<std::size_t>(got));
    if (line.back() == '\n') return line;
  }
  return std::unexpected("the answer is longer than any this tool expects");
}

ControlError no_daemon(const std::vector<std::string>& tried) {
  const std::string where = tried.empty() ? "there is no control socket in the usual places"
                                          : fmt::format("no daemon answers at {}", fmt::join(tried, "; "));
  return {Failure::no_daemon,
          fmt::format("{}: is gossamerd running? If its socket is elsewhere, name it with --socket or {}.", where,
                      layout::control_socket_environment)};
}

}  // namespace

JsonAnswer request(const std::vector<std::string>& sockets, const nlohmann::json& request) {
  std::vector<std::string> tried;
  for (const std::string& path : sockets) {
    auto connection = Connection::open(path);
    if (!connection) {
      if (connection.error().forbidden)
        return std::unexpected(
            ControlError{Failure::no_daemon, fmt::format("{} may not be used: {}", path, connection.error().why)});
      tried.push_back(fmt::format("{} ({})", path, connection.error().why));
      continue;
    }
    const auto bad = [&](const std::string& what) {
      return std::unexpected(ControlError{Failure::bad_answer, fmt::format("{}: {}", path, what)});
    };
    if (const auto sent = connection->send_line(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
        !sent)
      return bad(sent.error());
    const auto line = connection->receive_line();
    if (!line) return bad(line.error());
    nlohmann::json answer = nlohmann::json::parse(*line, nullptr, false);
    if (!answer.is_object()) return bad("the answer is not a JSON object: is this a control socket of gossamerd?");
    if (answer.contains("error"))
      return bad(answer["error"].is_string() ? answer["error"].get<std::string>() : answer["error"].dump());
    return answer;
  }
  return std::unexpected(no_daemon(tried));
}

}  // namespace gossamer::ctl
